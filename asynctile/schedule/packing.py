"""A packing: where every tile stands in a tier, byte by byte, in a step, and what moves before each entry.

`pack` works it out, as a pure function of the program, the cap and the prefetch depth. A walk decides which tiles stand, when
and where (walk.py). The schedule follows from the packing without further decisions (decide.py). `arriving` works out the step
that begins where another program has left the tiles, and ends where a step of `pack` begins.

Two ways not taken:
- Slots of a few sizes. Any tile takes any free slot, but the difference in size is lost: a step of which 99% fits moved as many
  bytes as one of which half fits.
- Intervals packed offline, without moving tiles: intervals that need all of a cap take 1.14 of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from asynctile.program.operation import HOST
from asynctile.program.program import Program
from asynctile.schedule.packer import Act
from asynctile.schedule.start import Seam
from asynctile.schedule.uses import Uses, is_dead, tiles_of
from asynctile.schedule.walk import Ends, NoRoom, Stay, Walk, inputs_alone
from asynctile.storage.errors import AsynctileError
from asynctile.storage.tile import NEVER, Tile

#: Lead times that are tried, as fractions of the cap per unit of prefetch depth: so many bytes may be loaded early, and as many
#: are kept free.
SHARES = (0.01, 0.025, 0.04, 0.06)
#: The limit on extra traffic for a faster step: bytes moved, relative to a walk by bytes alone.
MORE = 1.15
#: Walks by bytes alone. The tiles that stand after them are taken to stand between any two runs.
RUNS = 2
_ACTS = tuple(Act)


class Planned(NamedTuple):
    """One move. offset: where the tile will stand, in bytes; for LEAVE, where it stood."""

    act: Act
    tile: Tile
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """The moves of a step of `program` in a tier of `cap` bytes, at multiples of `alignment`.

    start: the offset of each tile that stands when a step begins. changed: the tiles of `start` whose bytes below are older
    then.
    moves: moves[i] are made, in order, before entry i, and the last ones behind the last entry. births: by entry, the operands
    that it overwrites whole and that stand nowhere yet, with their offsets.
    passing: inputs that the host writes below the tier before a run; they are dead behind their last use.
    end: where the step ends; None: where it begins. since, ahead, slack: as in `Seam`.
    """

    program: Program
    cap: int
    alignment: int
    start: Mapping[Tile, int]
    changed: frozenset[Tile]
    moves: tuple[tuple[Planned, ...], ...]
    births: Mapping[int, tuple[tuple[Tile, int], ...]]
    passing: frozenset[Tile] = frozenset()
    end: Seam | None = None
    since: Mapping[Tile, int] = field(default_factory=dict)
    ahead: int = 0
    slack: int = 0

    @property
    def seam(self) -> Seam:
        """Where the step ends."""
        return self.end or Seam(self.start, self.changed, self.since, self.ahead, self.slack)

    def to_take(self, changed: Collection[Tile]) -> list[Tile]:
        """Return the tiles that count as changed from the end on, though they are not among those `changed` so far."""
        taken = () if self.end is None else self.end.offsets
        return [tile for tile in taken if tile in self.seam.changed and tile not in changed]

    def nbytes(self, act: Act) -> int:
        """Return the bytes of all tiles that do `act` in a step."""
        return sum(planned.tile.nbytes for planned in self.planned() if planned.act is act)

    def planned(self) -> Iterator[Planned]:
        """Yield all moves, in order."""
        for moves in self.moves:
            yield from moves


def pack(uses: Uses, cap: int, depth: int, ahead: int | None = None) -> Packing | None:
    """Return the best packing found of `uses` in a tier of `cap` bytes; None if a step does not fit.

    depth: of prefetch. Loading early and evicting early take room, so more bytes have to move. Of the packings that move
    about the fewest bytes, the fastest is taken. ahead: the bytes to load early, where that is possible.
    """
    cap = cap // uses.alignment * uses.alignment
    packer = _Packer(uses, cap)
    found = (None if ahead is None else packer.packed(ahead, ahead)) or _best(packer, depth)
    return None if found is None else _packing(uses, cap, found)


def resident(program: Program, alignment: int) -> Packing:
    """Return the packing for RAM that is the device and holds everything: nothing moves, and offsets mean nothing."""
    standing = frozenset((*program.standing, *program.inputs.values()))
    alive, births = set(standing), dict[int, tuple[tuple[Tile, int], ...]]()
    for index, entry in enumerate(program.entries):
        born = dict.fromkeys(tile for tile in entry.tiles if tile not in alive)
        if born:
            births[index] = tuple((tile, 0) for tile in born)
            alive.update(born)
        ranks = zip(entry.tiles, program.next_uses[index], strict=True)
        alive.difference_update(tile for tile, rank in ranks if is_dead(tile, rank))
    return Packing(
        program=program, cap=0, alignment=alignment, start=dict.fromkeys(tiles_of(program)[: len(standing)], 0),
        changed=standing, moves=((),) * (len(program) + 1), births=births,
    )  # fmt: skip


def unpacked(uses: Uses, shared: Collection[Tile]) -> Packing:
    """Return the packing for a device that holds everything, over RAM: each tile is loaded once, and leaves only for the host.

    shared: tiles that stand on other devices, too. Offsets mean nothing.
    """
    cap = _enough(uses)
    found = _Packer(uses, cap).packed(cap, 0)
    assert found is not None, "everything fits"
    # Tiles that nobody else uses count as changed, so a step and a validation that alternate begin with the same state.
    in_ram = {tile for entry in uses.program.entries if entry.device == HOST for tile in entry.tiles}.union(shared)
    changed = {tile for tile in found.home if uses.tiles[tile] not in in_ram}
    return _packing(uses, cap, found._replace(changed=found.changed | changed))


def arriving(uses: Uses, cap: int | None, start: Mapping[Tile, int], changed: Collection[Tile], end: Seam) -> Packing:
    """Return the packing of a step that begins with the tiles of `start` at their offsets, and ends at `end`.

    cap: of the tier in bytes; None: it holds everything, and offsets mean nothing. changed: tiles of `start` that are newer
    than below. A step that fits from its own seam fits from every start, because in need all tiles leave but an entry's own.
    """
    numbers, first = {tile: number for number, tile in enumerate(uses.tiles)}, uses.first_needs()
    begin = {numbers[tile]: offset for tile, offset in start.items()}
    home = {numbers[tile]: offset for tile, offset in end.offsets.items()}
    ahead, slack = end.ahead, end.slack
    if cap is None:
        ahead, slack = cap, _ = _enough(uses), 0
        offsets = [0, *uses.sizes.cumsum().tolist()]
        begin, home = ({number: offsets[number] for number in standing} for standing in (begin, home))
    cap = cap // uses.alignment * uses.alignment
    standing = {number: Stay(-1, first.get(number, NEVER), uses.tiles[number] in changed) for number in begin}
    ends = Ends(begin, home, {numbers[tile]: len(uses) + back for tile, back in end.since.items()},
                [number for number in home if uses.tiles[number] not in end.changed])  # fmt: skip
    try:
        walk = Walk(uses, cap, ahead, slack, standing, kept=home, ends=ends)
    except NoRoom as error:
        raise AsynctileError(f"program {uses.program.name} fits from its own seam, but not from another start; "
                             "this is a bug in asynctile") from error
    moves, births = _moves(uses, walk)
    return Packing(
        program=uses.program, cap=cap, alignment=uses.alignment, start=start, changed=frozenset(changed), moves=moves,
        births=births, passing=frozenset(uses.tiles[tile] for tile in uses.passing), end=end,
    )  # fmt: skip


def _enough(uses: Uses) -> int:
    """Return a cap with a hole for each tile, wherever the others stand."""
    return int(uses.sizes.sum()) + (len(uses.tiles) + 1) * int(uses.sizes.max(initial=0))


def _packing(uses: Uses, cap: int, found: _Packed) -> Packing:
    tiles, (moves, births) = uses.tiles, _moves(uses, found.walk)
    return Packing(
        program=uses.program, cap=cap, alignment=uses.alignment,
        start={tiles[tile]: offset for tile, offset in found.home.items()},
        changed=frozenset(tiles[tile] for tile in found.changed), moves=moves, births=births,
        passing=frozenset(tiles[tile] for tile in uses.passing),
        since={tiles[tile]: since - len(uses) for tile, since in found.since.items()}, ahead=found.ahead, slack=found.slack,
    )  # fmt: skip


def _moves(uses: Uses, walk: Walk) -> tuple[tuple[tuple[Planned, ...], ...], dict[int, tuple[tuple[Tile, int], ...]]]:
    """Return the moves and the births of a walk, as in a packing."""
    tiles, moves, births = uses.tiles, [[] for _ in range(len(uses) + 1)], {}  # type: ignore[var-annotated]
    for index, act, tile, offset in walk.moves.tolist():
        if act == Act.BIRTH:
            births.setdefault(index, []).append((tiles[tile], offset))
        elif act != Act.NOTHING:
            moves[index].append(Planned(_ACTS[act], tiles[tile], offset))
    return tuple(map(tuple, moves)), {index: tuple(born) for index, born in births.items()}


class _Packed(NamedTuple):
    """A walk with places.

    home: the offsets of the tiles that stand between two runs. changed: those of them that are newer than their copy below.
    since: the entries of the run before at which they came. ahead, slack: of the walk.
    """

    walk: Walk
    home: dict[int, int]
    changed: set[int]
    since: dict[int, int]
    ahead: int
    slack: int


class _Packer(NamedTuple):
    """The arguments that all walks share."""

    uses: Uses
    cap: int

    def settled(self, ahead: int, slack: int) -> tuple[Walk, dict[int, Stay]]:
        """Walk RUNS times by bytes alone; return the last walk and the tiles that stand at its end.

        Raises NoRoom if an entry does not fit. ahead, slack: as in `Walk`.
        """
        standing = inputs_alone(self.uses, self.cap)
        for _ in range(RUNS):
            walk = Walk(self.uses, self.cap, ahead, slack, standing)
            standing = walk.standing()
        return walk, standing

    def packed(self, ahead: int, slack: int) -> _Packed | None:
        """Walk with places through a step and back to its beginning; None if that is impossible. ahead, slack: as in `Walk`."""
        try:
            _, standing = self.settled(ahead, slack)
            home, since = _homes(self.uses, self.cap, standing), {tile: stay.since for tile, stay in standing.items()}
            walk = Walk(self.uses, self.cap, ahead, slack, standing, kept=standing, ends=Ends(home, home, since))
        except NoRoom:
            return None
        changed = {tile for tile in home if walk.tiles["dirty"][tile]}
        if not self.uses.has_link:
            changed.update(self.uses.inputs)  # before the next run, the host writes them where they stand
            changed.update(tile for tile in self.uses.passing if tile in home)
        return _Packed(walk, home, changed, since, ahead, slack)


def _best(packer: _Packer, depth: int) -> _Packed | None:
    """Return the fastest packing that moves at most MORE times the fewest bytes, else the packing that moves least.

    The shares are tried in ascending order: loading earlier moves more bytes. Once a packing moves too many, the next share is
    not tried.
    """
    try:
        least, _ = packer.settled(0, 0)
    except NoRoom:
        return None
    found: list[_Packed] = []
    for spare in dict.fromkeys(int(share * depth * packer.cap) for share in SHARES):
        one = packer.packed(spare, spare)
        if one is not None:
            if found and one.walk.moved > MORE * least.moved:
                break
            found.append(one)
    within = [one for one in found if one.walk.moved <= MORE * least.moved]
    if within:
        return min(within, key=lambda one: one.walk.seconds)
    bare = packer.packed(0, 0)
    return min(found if bare is None else [*found, bare], key=lambda one: one.walk.moved, default=None)


def _homes(uses: Uses, cap: int, standing: Mapping[int, Stay]) -> dict[int, int]:
    """Return the offset of each standing tile between two runs: from the top down, in the order in which the tiles came.

    The tile that came last is used and evicted first, because a step ends with the tiles that it began with. So room grows from
    below.
    """
    homes, offset, sizes = {}, cap, uses.sizes.tolist()
    for tile in sorted(standing, key=lambda tile: (standing[tile].since, tile)):
        offset -= sizes[tile]
        homes[tile] = offset
    return homes
