"""The ledger of a tier: which tile stands in which slot, and what must move so that an operation can run.

Decides, moves nothing: `admit` appends moves (move.py) to a list that asynctile/memory/tier.py carries out. Decisions are those
of single launches, of which nothing is known ahead: the victim is the tile that was used longest ago (ranking.py). While the
arena is packed nothing is decided here: who comes, goes and moves is told, and where to.

Nobody ever waits for a slot here: a slot may change hands while work on it is still under way, because its next
owner waits, on the streams, for the events of the last one. So an operation can run whenever its own tiles fit
together, and two operations cannot starve each other.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Protocol

from asynctile.storage.arena import Arena
from asynctile.storage.errors import AsynctileError, BudgetError
from asynctile.storage.move import Allocate, Evict, Load, Move
from asynctile.storage.pool import Pool
from asynctile.storage.ranking import Ranking
from asynctile.storage.residency import (
    ABSENT,
    ALLOCATE,
    DIRTY,
    LEAVE,
    LOAD,
    LOSE,
    WRITE,
    WRITE_BACK,
    History,
    Residency,
    State,
    Transition,
)
from asynctile.storage.sizes import format_size
from asynctile.storage.slot import Slot
from asynctile.storage.tile import Tile


class Backing(Protocol):
    """The tier below: hands out places for tiles and takes them back."""

    def take(self, residency: Residency) -> Any: ...

    def give(self, residency: Residency) -> None: ...


class Ledger:
    """Residency of one tier. `backing` None: there is no tier below, nothing can be evicted.

    Invariants: a slot belongs to at most one tile; a tile has a slot exactly while it is clean, dirty or stale; of a dirty
    tile there is no copy below that is as new; a dead temporary has neither slot nor backing. history: of the transitions.
    """

    def __init__(self, arena: Arena, backing: Backing | None) -> None:
        self.arena = arena
        self.backing = backing
        self.peak_nbytes = 0
        #: all and only those that have a slot, in the order in which they came: decisions may not depend on addresses
        self.resident: dict[Residency, None] = {}
        self.history = History()
        self.ranking = Ranking()

    def of(self, tile: Tile) -> Residency:
        """The residency of a tile in this tier."""
        found = tile.at.get(self)
        if found is None:
            found = tile.at[self] = Residency(tile)
        return found

    def admit(self, residencies: Sequence[Residency], access: str, moves: list[Move]) -> None:
        """Give each tile of an operation a slot, all or none; append moves in the order in which to issue them.

        access: one letter a tile, "r", "u" (bytes needed) or "w" (overwritten). BudgetError if they cannot fit;
        moves already decided then stand and must still be carried out.
        """
        for residency in residencies:
            if residency.slot is None:
                break
        else:
            return
        self._check_room(residencies)
        for residency, how in zip(residencies, access, strict=True):
            if residency.state is ABSENT and how != "w":
                raise never_written(residency.tile)
            if self.arena.packed and residency.slot is None and (how != "w" or residency.tile not in self.arena.expected):
                raise self.history.fault(residency, f"its plan has no place for it in {self.arena.argument}")
        held = set(residencies)
        for residency, how in zip(residencies, access, strict=True):
            if residency.slot is None:
                slot = self._slot_for(residency, held, moves, for_load=how != "w")
                self._settle(residency, slot, how != "w", moves)

    def load_at(self, residency: Residency, offset: int, moves: list[Move]) -> None:
        """Bring a tile to `offset` of a packed arena, where nobody stands."""
        self._settle(residency, self.arena.take_at(offset, residency.tile.nbytes), True, moves)

    def expect(self, tile: Tile, offset: int) -> None:
        """The tile will be written whole before it is read, at `offset` of a packed arena: `admit` allocates it there."""
        self.arena.expected[tile] = offset

    def used(self, residency: Residency, next_use: int, wrote: bool) -> None:
        """Record a use that was just issued and the next one."""
        residency.next_use = next_use
        if wrote and residency.state is not DIRTY:
            self.history.change(residency, WRITE)
        slot = residency.slot
        assert slot is not None
        self.ranking.rank(slot.pool, residency)

    def change(self, residency: Residency, transition: Transition) -> None:
        """A transition that moves no slot."""
        self.history.change(residency, transition)

    def vacate(self, residency: Residency, transition: Transition) -> Slot | None:
        """A transition after which the tile has no slot; the slot it had, evicted, so that its guard can be set."""
        self.history.change(residency, transition)
        slot = residency.slot
        if slot is not None:
            self._leave(residency)
            slot.pool.give(slot, evicted=True)
        return slot

    def release(self, residency: Residency) -> Slot | None:
        """The tile is dead: free its slot (returned, so that its guard can be set) and its backing."""
        slot = residency.slot
        if slot is not None:
            self._leave(residency)
            slot.pool.give(slot, evicted=False)
        if residency.backing is not None and self.backing is not None:
            self.backing.give(residency)
            residency.backing = None
        if residency.state is not ABSENT:
            self.history.change(residency, LOSE)
        return slot

    def evict(self, residency: Residency) -> Evict:
        """Move one tile out now (to change it below, to cut the arena anew, or to free its slot early)."""
        slot = residency.slot
        assert slot is not None
        move = self._evict(residency, slot)
        slot.pool.give(slot, evicted=True)
        return move

    def forget_pools(self) -> None:
        """The arena was cut anew: nothing is resident, and the old pools are gone."""
        self.ranking.clear()

    def undo(self, move: Move) -> None:
        """Take back a move that was decided and not made; of several, the last one first."""
        residency, slot = move.residency, move.slot
        self.history.undo(residency, move.was)
        if isinstance(move, Evict):
            slot.pool.claim(slot)
            residency.slot = slot
            self.resident[residency] = None
            self.ranking.rank(slot.pool, residency)
        else:
            self._leave(residency)
            slot.pool.give(slot, evicted=True)

    def assume(self, found: Sequence[tuple[Residency, State, Slot | None, int]]) -> None:
        """What ran without the ledger left tiles so: (residency, state, slot, next use) each, slots are theirs or free."""
        for residency, _, slot, _ in found:
            old = residency.slot
            if old is not None and old is not slot:
                self._leave(residency)
                old.pool.give(old, evicted=True)
        for residency, state, slot, next_use in found:
            if residency.state is not state:
                self.history.undo(residency, state)
            residency.next_use = next_use
            if slot is not None:
                if residency.slot is None:
                    slot.pool.claim(slot)
                    residency.slot = slot
                    self.resident[residency] = None
                self.ranking.rank(slot.pool, residency)

    def _settle(self, residency: Residency, slot: Slot, load: bool, moves: list[Move]) -> None:
        was = residency.state
        self.history.change(residency, LOAD if load else ALLOCATE)
        residency.slot = slot
        self.resident[residency] = None
        moves.append(Load(residency, slot, was) if load else Allocate(residency, slot, was))
        self._count()
        self.ranking.rank(slot.pool, residency)

    def _count(self) -> None:
        self.peak_nbytes = max(self.peak_nbytes, self.arena.held_nbytes)

    def _slot_for(
        self, residency: Residency, held: Container[Residency], moves: list[Move], *, for_load: bool
    ) -> Slot:
        """A free slot, or that of the tile of the highest rank; packed: as expected."""
        if self.arena.packed:
            return self.arena.take_at(self.arena.expected.pop(residency.tile), residency.tile.nbytes)
        pool = self.arena.pool_for(residency.tile.nbytes)
        slot = pool.take(for_load=for_load)
        if slot is not None:
            return slot
        victim = self.ranking.furthest(pool, held)
        if victim is None:
            raise self._no_room(residency.tile, pool)
        slot = victim.slot
        assert slot is not None
        moves.append(self._evict(victim, slot))
        return slot

    def _evict(self, victim: Residency, slot: Slot) -> Evict:
        was = victim.state
        write_back = was is DIRTY
        if write_back:
            if self.backing is None:
                raise self._no_room(victim.tile, self.arena.pool_for(victim.tile.nbytes))
            if victim.backing is None:
                victim.backing = self.backing.take(victim)
        self.history.change(victim, WRITE_BACK if write_back else LEAVE)
        self._leave(victim)
        return Evict(victim, slot, was, write_back)

    def _leave(self, residency: Residency) -> None:
        residency.slot = None
        self.resident.pop(residency, None)

    def _check_room(self, residencies: Sequence[Residency]) -> None:
        """Refuse before anything moves: do the tiles of one operation fit together?"""
        if self.arena.cap is None or self.arena.packed:
            return
        wanted: dict[Pool, int] = {}
        for residency in set(residencies):
            pool = self.arena.pool_for(residency.tile.nbytes)
            wanted[pool] = wanted.get(pool, 0) + 1
        for pool, count in wanted.items():
            if pool.limit is not None and count > pool.limit:
                raise self._no_room(max((one.tile for one in residencies), key=lambda tile: tile.nbytes), pool, count)

    def _no_room(self, tile: Tile, pool: Pool, count: int | None = None) -> BudgetError:
        limit = pool.made
        wanted = count if count is not None else limit + 1
        nbytes = wanted * pool.slot_nbytes
        return BudgetError(
            f"tile {tile.name} needs a slot of {format_size(pool.slot_nbytes)}; all {limit} that {self.arena.argument} "
            f"of {format_size(self.arena.cap or 0)} allows are held"
            + (f" by its operation, which needs {count}" if count is not None else " and nothing can leave them")
            + f"; {self.arena.remedy} or choose a smaller tile",
            floor=nbytes,
        )


def never_written(tile: Tile) -> AsynctileError:
    """What to raise when bytes are asked for that nobody has made."""
    return AsynctileError(f"tile {tile.name} was never written: store or compute it before reading it")
