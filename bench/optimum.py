"""The least bytes that a step can move over a link under a cap, from the program and the cap alone.

This file shares no code with the engine: no slots, no addresses, no ledger. It allows more than any scheduler can do: a part of
a tile may leave, moves within the device are free, and loads arrive at the very moment of use. It requires that all operands of
an entry are on the device at once, that data the host reads has been downloaded, and that data the host writes (by an
operation, as an input before a step or at a mark) is loaded again.

It looks at several steps in a row out of an endless sequence. Bytes either stay on the device from one use to the next or not;
gaps that end in an overwrite or in the tile's death need no bytes. Where more bytes would stay than there is room, those used
furthest ahead leave (MIN), which is the optimum because a part of a tile may leave. Downloads work the same way: the bytes that
may stay are those that the device has written, up to their last use. Each figure is a bound by itself: a schedule that reaches
one need not reach the other. For few steps in a row the bound on downloads is weaker, by up to one cap divided by their number.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from asynctile.program.operation import HOST, READ, WRITE
from asynctile.program.program import Mark, Program
from asynctile.storage.tile import Tile

#: Steps in a row; the result is their average.
STEPS = 6
#: By the cap's share of the states: the most that a step should load, relative to the least bytes.
MOST = {0.10: 1.40, 0.25: 1.25, 0.50: 1.15}


@dataclass(frozen=True, slots=True)
class Least:
    """Bytes per step, up and down: no repeating step moves fewer of either."""

    uploaded_nbytes: int
    downloaded_nbytes: int


class Use(NamedTuple):
    """A use of a tile. position: of its entry, 0 for the first of all steps. by_host: in RAM, not on the device."""

    position: int
    reads: bool
    writes: bool
    by_host: bool


class Stay(NamedTuple):
    """Bytes that cost nothing if they stay on the device after the use at `begin`, up to the use at `end`."""

    begin: int
    end: int
    nbytes: int


@dataclass(slots=True)
class Wanted:
    """Bytes that move in any case (forced), and bytes that move unless they stay.

    room: free bytes beside each entry's operands.
    """

    room: list[int]
    forced: int = 0
    stays: list[Stay] = field(default_factory=list)

    def nbytes(self) -> int:
        """Return the least bytes that move."""
        return self.forced + _leaving(self.stays, self.room)


def least_bytes(program: Program, cap: int, steps: int = STEPS) -> Least:
    """Return the least bytes per step for a device with a link and `cap` bytes of memory.

    For RAM above a file the same numbers are bytes read and written. Raises ValueError if the operands of one entry exceed the
    cap.
    """
    room = [cap - sum(tile.nbytes for tile in set(entry.tiles)) * (entry.device != HOST) for entry in program.entries]
    if min(room) < 0:
        raise ValueError(f"program {program.name}: an entry has operands of {cap - min(room)} bytes, the cap is {cap}")
    up, down = Wanted(room * steps), Wanted(room * steps)
    for tile, uses in _uses(program).items():
        # Include the steps before and after, which are not counted: a tile that lasts from one step to the next partly belongs
        # to them.
        around = range(-1, steps + 1)
        repeated = [use._replace(position=use.position + step * len(program)) for step in around for use in uses]
        _loads(tile, repeated, up)
        _write_backs(tile, repeated, down)
    return Least(-(-up.nbytes() // steps), -(-down.nbytes() // steps))


def most_at(share: float) -> float | None:
    """Return the target for loads under a cap of that share, relative to the least bytes; None if there is no target."""
    return MOST[max(known)] if (known := [cap for cap in MOST if cap <= share]) else None


def _uses(program: Program) -> dict[Tile, list[Use]]:
    """Return the uses of every tile in a step, in order. The host writes inputs before the first entry and at marks."""
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
    """Add a tile's loads. Between two uses on the device its bytes stay or are loaded again.

    After a write by the host they are loaded in any case.
    """
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
    """Add a tile's write-backs: from a device write to the last use of that data its bytes stay or come down.

    Data that the host reads comes down in any case.
    """
    life: list[int] = []  # data that the device has and RAM lacks: where it was written, and each use since
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
    """Add bytes that come down unless they stay until their last use."""
    if not life or life[0] < 0:
        return
    end = min(life[-1], len(wanted.room))
    wanted.stays.append(Stay(life[0], end, tile.nbytes))
    for position in life[1:]:
        if position < end:
            wanted.room[position] += tile.nbytes  # here the tile counts as a stay, not as an operand


def _leaving(stays: list[Stay], room: list[int]) -> int:
    """Return the least bytes that must leave so that the stays never take more than `room`."""
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
