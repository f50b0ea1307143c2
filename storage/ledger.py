"""The ledger of one tier: which tile stands in which slot, and what must move so that an operation can run.

It decides, and moves nothing: `admit` appends moves (move.py) to a list that asynctile/memory/tier.py carries out. It decides
for single launches only, about whose future nothing is known, so it evicts the least recently used tile (ranking.py). While the
arena is packed, tiles come only by schedules: `assume` records where each run has left them.

Nobody waits for a slot here. A slot may change hands while work on it is still in flight, because its next owner waits, on the
streams, for the events of the last one. So an operation can run whenever its own tiles fit together, and two operations cannot
starve each other.
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
    """The tier below: it gives tiles a place and takes the place back."""

    def take(self, residency: Residency) -> Any: ...

    def give(self, residency: Residency) -> None: ...


class Ledger:
    """The residencies of one tier. backing: the tier below; None: there is none, and nothing can be evicted.

    Invariants:
    - A slot belongs to at most one tile.
    - A tile has a slot exactly while it is clean or dirty.
    - No copy below is as new as a dirty tile.
    - A dead temporary has neither a slot nor a backing.
    history: the last transitions of this tier.
    """

    def __init__(self, arena: Arena, backing: Backing | None) -> None:
        self.arena = arena
        self.backing = backing
        self.peak_nbytes = 0
        #: all and only the residencies that have a slot, by arrival, so that decisions do not depend on addresses
        self.resident: dict[Residency, None] = {}
        self.history = History()
        self.ranking = Ranking()

    def of(self, tile: Tile) -> Residency:
        """Return the residency of `tile` in this tier."""
        found = tile.at.get(self)
        if found is None:
            found = tile.at[self] = Residency(tile)
        return found

    def admit(self, residencies: Sequence[Residency], access: str, moves: list[Move]) -> None:
        """Give every tile of an operation a slot, all or none; append the moves in the order in which to issue them.

        access: one letter per tile, "r" or "u" (its bytes are needed) or "w" (overwritten whole). Raises BudgetError if the
        tiles do not fit together; moves that were appended before the error stand and must still be carried out. AsynctileError
        if bytes are needed that were never written, or if a tile has no slot in a packed arena.
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
            if self.arena.packed and residency.slot is None:
                raise self.history.fault(residency, f"the plan has no place for it in {self.arena.argument}")
        held = set(residencies)
        for residency, how in zip(residencies, access, strict=True):
            if residency.slot is None:
                slot = self._slot_for(residency, held, moves, for_load=how != "w")
                self._settle(residency, slot, how != "w", moves)

    def used(self, residency: Residency, next_use: int, wrote: bool) -> None:
        """Record a use that was just issued, and the rank of the next one; `wrote` makes the tile dirty."""
        residency.next_use = next_use
        if wrote and residency.state is not DIRTY:
            self.history.change(residency, WRITE)
        slot = residency.slot
        assert slot is not None
        self.ranking.rank(slot.pool, residency)

    def change(self, residency: Residency, transition: Transition) -> None:
        """Make a transition that moves no slot."""
        self.history.change(residency, transition)

    def vacate(self, residency: Residency, transition: Transition) -> Slot | None:
        """Make a transition that takes the tile out of its slot; return the slot, now free, for the caller to set its guard."""
        self.history.change(residency, transition)
        slot = residency.slot
        if slot is not None:
            self._leave(residency)
            slot.pool.give(slot, evicted=True)
        return slot

    def release(self, residency: Residency) -> Slot | None:
        """Free the slot and the backing of a dead tile; return the slot for the caller to set its guard."""
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
        """Evict one tile now: to change it below, to cut the arena anew, or to free its slot early."""
        slot = residency.slot
        assert slot is not None
        move = self._evict(residency, slot)
        slot.pool.give(slot, evicted=True)
        return move

    def forget_pools(self) -> None:
        """Forget all ranks after the arena was cut anew. No tile may be resident."""
        self.ranking.clear()

    def undo(self, move: Move) -> None:
        """Take back a move that was decided but not made. Take back several moves in reverse order."""
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
        """Adopt the state that work outside the ledger left behind.

        found: (residency, state, slot, next use) of each tile. The slots are the tiles' own or free.
        """
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
        self.peak_nbytes = max(self.peak_nbytes, self.arena.held_nbytes)
        self.ranking.rank(slot.pool, residency)

    def _slot_for(
        self, residency: Residency, held: Container[Residency], moves: list[Move], *, for_load: bool
    ) -> Slot:
        """Return a free slot, evicting the tile of the highest rank if there is none."""
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
        """Raise BudgetError, before anything moves, if the tiles of one operation do not fit together."""
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
            + (f" by its operation, which needs {count}" if count is not None else " and nothing can be evicted")
            + f"; {self.arena.remedy} or choose a smaller tile",
            floor=nbytes,
        )


def never_written(tile: Tile) -> AsynctileError:
    """Return the error for reading a tile whose bytes were never made."""
    return AsynctileError(f"tile {tile.name} was never written; store or compute it before reading it")
