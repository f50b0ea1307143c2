"""A tier: fast memory that is cut into slots or packed, a ledger of the tiles in it, and the moves to and from the tier below.

A tier carries out moves and decides none: the ledger decides them, or a caller asks for them. A move is
enqueued with the events that it must wait for, and nothing waits here. A slot may change hands while work on it is
under way, because events order its next owner behind that work.

The same class is the device over RAM, RAM over a disk, and RAM alone. Only the link to the tier below differs.
"""

from __future__ import annotations

from collections.abc import Sequence

from asynctile.memory.contracts import Link, Memory
from asynctile.storage.demand import Demand
from asynctile.storage.ledger import Ledger
from asynctile.storage.move import Allocate, Evict, Load, Move
from asynctile.storage.residency import (
    ABSENT,
    CLEAN,
    DIRTY,
    KEEP,
    LEAVE,
    LOSE,
    MOST_READS,
    REPLACE,
    STORED,
    Residency,
    State,
    Transition,
)
from asynctile.storage.slot import Slot
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, StreamEvents, failed_or_unfinished, unfinished
from asynctile.streams.run_ahead import RunAhead


class Tier:
    """One tier of a share. link: to the tier below; None where no tile can leave.

    loaded_nbytes, written_nbytes: bytes moved from and to the tier below, never reset. A single move counts when it is
        enqueued, the moves of a schedule when its run ends.
    """

    def __init__(self, memory: Memory, ledger: Ledger, link: Link | None, run_ahead: RunAhead) -> None:
        self.memory = memory
        self.ledger = ledger
        self.arena = ledger.arena
        self.link = link
        self.run_ahead = run_ahead
        self.loaded_nbytes = 0
        self.written_nbytes = 0

    def of(self, tile: Tile) -> Residency:
        """Return the residency of `tile` in this tier."""
        return self.ledger.of(tile)

    def met(self, tile: Tile) -> Residency | None:
        """Return the residency of `tile` in this tier; None if the tier has never heard of the tile."""
        return tile.at.get(self.ledger)

    def admit(self, residencies: Sequence[Residency], access: str) -> list[Move]:
        """Give each tile a slot and enqueue the moves for that; other tiles may be evicted.

        access: one letter per tile, as in Ledger.admit. BudgetError if the tiles do not fit together, AsynctileError as in
        Ledger.admit. After an error, slots without bytes are taken back; loads and evictions already enqueued stay. Returns the
        moves, to be passed to `take_back` if the work that was to use the tiles does not happen after all.
        """
        moves: list[Move] = []
        try:
            try:
                self.ledger.admit(residencies, access, moves)
            finally:
                self.carry_out(moves)
        except BaseException:
            self.take_back(moves)
            raise
        return moves

    def take_back(self, moves: Sequence[Move]) -> None:
        """Undo the allocations among these moves: nobody has written those tiles, nor will.

        Each tile is again what it was before. Nothing below is outdated until a write is enqueued, so if there are
        bytes below, they are whole and the newest. Loads and evictions stay, since they moved the tiles' own bytes.
        """
        for move in moves:
            if isinstance(move, Allocate) and move.residency.slot is move.slot:  # else it was undone
                self.drop(move.residency, LOSE if move.was is ABSENT else REPLACE)

    def read_by(self, residency: Residency, event: StreamEvent, next_use: int) -> None:
        """Note that `event` reads the tile, which is used next at `next_use`."""
        reads = residency.reads
        reads.append(event)
        if len(reads) > MOST_READS:
            residency.reads = [read for read in reads if not read.done]
        self.ledger.used(residency, next_use, False)

    def written_by(self, residency: Residency, event: StreamEvent | None, next_use: int) -> None:
        """Note that `event` writes the tile (None: written already), which is used next at `next_use`."""
        residency.written = event
        residency.reads = []
        self.ledger.used(residency, next_use, True)

    def release(self, residency: Residency) -> None:
        """Free the slot of a dead tile and its place below. Their next owners wait for the work that is still on them."""
        slot = self.ledger.release(residency)
        if slot is not None:
            slot.guard = unfinished(residency.written, *residency.reads)
        residency.array = residency.written = residency.saved = None
        residency.reads = []

    def drop(self, residency: Residency, transition: Transition) -> None:
        """Forget the bytes here, because there are newer ones or these are not whole."""
        slot = self.ledger.vacate(residency, transition)
        if slot is not None:
            self._leave(residency, slot, unfinished(residency.written, *residency.reads))

    def give_up(self, residency: Residency) -> None:
        """Evict the tile, because its newest bytes are wanted below."""
        self.carry_out([self.ledger.evict(residency)])

    def clear(self) -> None:
        """Evict every tile."""
        for residency in list(self.ledger.resident):
            self.give_up(residency)

    def assume(self, found: Sequence[tuple[Residency, State, Slot | None, int]]) -> None:
        """Note where tiles stand after a run that bypassed this tier and is over; see Ledger.assume."""
        self.ledger.assume(found)
        for residency, _, slot, _ in found:
            residency.written = residency.saved = None
            residency.reads = []
            residency.array = None
            if slot is not None:
                slot.guard = ()
                residency.array = self.memory.array(slot, residency.tile.shape, residency.tile.dtype)

    def cut(self, demand: Demand, foreign: dict[int, int]) -> None:
        """Make the pools serve `demand`. Nothing may be in flight (not checked). foreign: as in Arena.check.

        The pools must be empty (asserted) if arena.must_be_empty says so. If there is no memory for the new slots, they are
        withdrawn and the error is raised.
        """
        if self.arena.must_be_empty(demand, foreign):
            self._forget_pools()
        self.let_go(self.arena.make_room(demand, foreign))
        for pool in self.arena.pools:
            if not pool.made:  # its address space is in the way, too
                pool.memory = None
        new = self.arena.cut(demand, foreign)
        try:
            self.back()
        except BaseException:
            self.arena.withdraw(new)
            raise

    def pack(self) -> None:
        """Pack the arena until the next `cut`: tiles stand where schedules put them. The tier must be empty (asserted).

        Nothing may be in flight (not checked). If there is no memory, raises the same error as `cut`, and the tier has none.
        """
        self._forget_pools()
        self.arena.pack()
        try:
            self.back()
        except BaseException:
            self.forget_pools()
            raise

    def forget_pools(self) -> None:
        """Free all memory of the tier. It must be empty (asserted), and nothing may be in flight (not checked)."""
        self._forget_pools()
        self.arena.leave_ground()

    def _forget_pools(self) -> None:
        for pool in self.arena.pools:
            pool.memory = None
        self.arena.forget_pools()
        self.ledger.forget_pools()

    def let_go(self, slots: Sequence[Slot]) -> None:
        """Free the memory of slots that the arena has already dropped."""
        for slot in slots:
            slot.guard = ()
            self.memory.discard(slot)

    def back(self) -> None:
        """Map memory for the slots that are expected of the pools now; if the arena is packed, map all of it."""
        for pool in self.arena.pools:
            self.memory.map_pool(pool)
        if self.arena.packed and self.arena.ground is not None:
            self.memory.map_ground(self.arena.ground)

    def close(self) -> None:
        """Drop all views of memory, which is about to go."""
        for residency in self.ledger.resident:
            residency.array = None
        for pool in self.arena.pools:
            pool.memory = None
        self.arena.leave_ground()

    def rescue(self, residency: Residency) -> bool:
        """After a failure, forget copies that are not whole; return False if no whole one is left. Nothing may be in flight."""
        return self.forget_failed(residency) and (not self.is_lost_below(residency) or self.keep(residency))

    def forget_failed(self, residency: Residency) -> bool:
        """Forget the bytes here if they are not whole; return False if they were the newest. Nothing may be in flight."""
        if residency.slot is None or residency.written is None or residency.written.error is None:
            return True
        newest = residency.state is DIRTY
        self.drop(residency, LOSE if newest else LEAVE)
        return not newest  # the bytes below are older, so they are no copy

    def is_lost_below(self, residency: Residency) -> bool:
        """Return whether the newest bytes were below, and failed to arrive there. Nothing may be in flight."""
        if self.link is None or residency.state not in (STORED, CLEAN):
            return False
        return (residency.saved is not None or residency.backing is not None) and self.link.is_lost(residency)

    def keep(self, residency: Residency) -> bool:
        """Note that the copy below is lost; return whether there is one here, which is now the only one."""
        residency.saved = None
        self.ledger.change(residency, LOSE if residency.slot is None else KEEP)
        return residency.slot is not None

    def carry_out(self, moves: Sequence[Move]) -> None:
        """Enqueue moves in their order. If one fails, it and the moves after it are undone: their tiles are where they were."""
        for index, move in enumerate(moves):
            try:
                if isinstance(move, Evict):
                    self._evict(move.residency, move.slot, move.write_back)
                elif isinstance(move, Load):
                    self._load(move.residency, move.slot)
                else:
                    self._allocate(move.residency, move.slot)
            except BaseException:
                for undone in reversed(moves[index:]):
                    self.ledger.undo(undone)
                raise

    def _evict(self, residency: Residency, slot: Slot, write_back: bool) -> None:
        guard = unfinished(residency.written, *residency.reads)
        if write_back:
            assert self.link is not None
            event = residency.saved = self.link.write(residency, slot, failed_or_unfinished(residency.written))
            self.written_nbytes += self.link.moved_nbytes(residency)
            self.run_ahead.add(event, residency.tile.nbytes)
            guard = (*guard, event)
        self._leave(residency, slot, guard)

    def _leave(self, residency: Residency, slot: Slot, guard: StreamEvents) -> None:
        slot.guard = tuple(guard)
        residency.array = residency.written = None
        residency.reads = []

    def _load(self, residency: Residency, slot: Slot) -> None:
        assert self.link is not None
        tile, after = residency.tile, unfinished(*slot.guard)
        residency.array = self.memory.array(slot, tile.shape, tile.dtype)
        event = residency.written = self.link.read(residency, slot, after)
        slot.guard = ()
        residency.reads = []
        self.loaded_nbytes += self.link.moved_nbytes(residency)
        self.run_ahead.add(event, tile.nbytes)

    def _allocate(self, residency: Residency, slot: Slot) -> None:
        residency.array = self.memory.array(slot, residency.tile.shape, residency.tile.dtype)
        residency.written = None
        residency.reads = list(unfinished(*slot.guard))
        slot.guard = ()
