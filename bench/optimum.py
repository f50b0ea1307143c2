"""The least bytes that a step can move over a link under a cap: from the program and the cap alone.

Shares no code with the engine: no slots, no addresses, no ledger. It allows more than any scheduler can do: a tile may leave in
part, everything moves within the device for nothing, what is loaded comes at the very moment it is used. It asks that all
operands of an entry stand on the device at once, that what the host reads has come down, and that what the host writes (an
operation there, an input before a step or at a mark) is loaded again.

Of steps that follow each other for ever some in a row are looked at, before and behind which anything may stand. Bytes are kept
there from one use to the next or are not; gaps that end in an overwrite or in death want none. Where more would be kept than
there is room, what is used furthest ahead leaves (MIN), which is the optimum since it may leave in part. The same for
downloads, where what is kept are bytes that the device has written, up to the last use of them. Each figure is a bound by
itself: a schedule that reaches one need not reach the other. Of few steps in a row the one for downloads is weaker, by up to a
cap over their number.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from asynctile.program.operation import HOST, READ, WRITE
from asynctile.program.program import Mark, Program
from asynctile.storage.tile import Tile

#: Steps in a row of which one is the average.
STEPS = 6
#: By the share of the cap, the most of the least bytes that a step should load under it.
MOST = {0.10: 1.40, 0.25: 1.25, 0.50: 1.15}


@dataclass(frozen=True, slots=True)
class Least:
    """Bytes a step, up and down: no step that repeats moves fewer of either."""

    uploaded_nbytes: int
    downloaded_nbytes: int


class Use(NamedTuple):
    """A use of a tile. position: of its entry, 0 for the first of the steps in a row. by_host: in RAM, not on the device."""

    position: int
    reads: bool
    writes: bool
    by_host: bool


class Stay(NamedTuple):
    """Bytes that cost nothing if they stay on the device behind the use at `begin`, up to that at `end`."""

    begin: int
    end: int
    nbytes: int


@dataclass(slots=True)
class Wanted:
    """Bytes that are moved in any case, and those that are if they do not stay. room: beside the operands of each entry."""

    room: list[int]
    forced: int = 0
    stays: list[Stay] = field(default_factory=list)

    def nbytes(self) -> int:
        """The least that is moved."""
        return self.forced + _leaving(self.stays, self.room)


def least_bytes(program: Program, cap: int, steps: int = STEPS) -> Least:
    """For a device with a link and `cap` bytes of memory; ValueError if the operands of one entry are more.

    On RAM over a file the same numbers are bytes read and written.
    """
    room = [cap - sum(tile.nbytes for tile in set(entry.tiles)) * (entry.device != HOST) for entry in program.entries]
    if min(room) < 0:
        raise ValueError(f"program {program.name}: an entry has operands of {cap - min(room)} bytes, the cap is {cap}")
    up, down = Wanted(room * steps), Wanted(room * steps)
    for tile, uses in _uses(program).items():
        # With the steps before and behind them, which are not counted: of what lasts from one to the next a part is theirs.
        around = range(-1, steps + 1)
        repeated = [use._replace(position=use.position + step * len(program)) for step in around for use in uses]
        _loads(tile, repeated, up)
        _write_backs(tile, repeated, down)
    return Least(-(-up.nbytes() // steps), -(-down.nbytes() // steps))


def most_at(share: float) -> float | None:
    """The most of the least bytes that a step should load under a cap of that share; None where nothing is said."""
    return MOST[max(known)] if (known := [cap for cap in MOST if cap <= share]) else None


def _uses(program: Program) -> dict[Tile, list[Use]]:
    """Of every tile in a step, in order; the host writes inputs before the first entry and at marks."""
    uses: dict[Tile, list[Use]] = defaultdict(list)
    for tile in program.inputs.values():
        uses[tile].append(Use(0, False, True, True))
    for position, entry in enumerate(program.entries):
        if isinstance(entry, Mark):
            for tile in program.rewritten[entry.name]:
                uses[tile].append(Use(position, False, True, True))
        for tile in dict.fromkeys(entry.tiles):
            access = {how for other, how in zip(entry.tiles, entry.access, strict=True) if other is tile}
            uses[tile].append(Use(position, access != {WRITE}, access != {READ}, entry.device == HOST))
    return uses


def _loads(tile: Tile, uses: list[Use], wanted: Wanted) -> None:
    """Between two uses on the device its bytes stay or are loaded again; behind a write of the host they are, in any case."""
    before: int | None = None
    for use in uses:
        if use.by_host:
            before = None if use.writes else before
            continue
        if use.reads and 0 <= use.position < len(wanted.room):
            if before is None:
                wanted.forced += tile.nbytes
            else:
                wanted.stays.append(Stay(max(before, -1), use.position, tile.nbytes))
        before = use.position


def _write_backs(tile: Tile, uses: list[Use], wanted: Wanted) -> None:
    """From a write on the device to the last use of what it wrote the bytes stay or come down; for the host, in any case."""
    life: list[int] = []  # of bytes that the device has and RAM has not: where they were written, and each use since
    for use in uses:
        if life and use.reads:
            life.append(use.position)
            if use.by_host:
                wanted.forced += tile.nbytes * (0 <= use.position < len(wanted.room))
                life = []
        if use.writes:
            _outlive(tile, life, wanted)
            life = [] if use.by_host else [use.position]
    _outlive(tile, life, wanted)


def _outlive(tile: Tile, life: list[int], wanted: Wanted) -> None:
    """Bytes that come down unless they stay as long as they are used."""
    if not life or life[0] < 0:
        return
    end = min(life[-1], len(wanted.room))
    wanted.stays.append(Stay(life[0], end, tile.nbytes))
    for position in life[1:]:
        if position < end:
            wanted.room[position] += tile.nbytes  # where it is used it is counted as what stays


def _leaving(stays: list[Stay], room: list[int]) -> int:
    """The least bytes that must leave so that what stays never takes more than `room`."""
    begins, ends = defaultdict[int, list[Stay]](list), defaultdict[int, list[int]](list)
    for stay in stays:
        if stay.end > stay.begin + 1:
            begins[stay.begin].append(stay)
    kept: list[int] = []
    furthest: list[tuple[int, int]] = []
    standing = left = 0
    for position, limit in enumerate(room):
        for stay in begins[position - 1]:
            standing += stay.nbytes
            heapq.heappush(furthest, (-stay.end, len(kept)))
            ends[stay.end].append(len(kept))
            kept.append(stay.nbytes)
        standing -= sum(kept[index] for index in ends[position])
        while standing > limit:
            index = furthest[0][1]
            part = min(kept[index], standing - limit)
            kept[index] -= part
            standing -= part
            left += part
            if not kept[index]:
                heapq.heappop(furthest)
    return left
