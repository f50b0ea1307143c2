"""A tier: fast memory cut into slots, the ledger of who stands there, and the moves to and from what is below.

Carries out what asynctile/schedule/prefetch.py decides. A move is enqueued with the events that it must wait for, and nothing
waits here: a slot may change hands while work on it is under way, its next owner is ordered behind that by events. The same
class is the device over RAM, RAM over a disk, and RAM alone; what differs is `below`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from asynctile.program.handle import Handle
from asynctile.schedule.prefetch import Pipeline
from asynctile.storage.arena import Pool, Slot
from asynctile.storage.demand import Demand
from asynctile.storage.residency import Backing, Evict, Load, Move
from asynctile.streams.lockstep import Turns
from asynctile.streams.run_ahead import Window
from asynctile.streams.stream import StreamEvent, StreamEvents


class Memory(Protocol):
    """Who gives pools their bytes (a device, or storage/host.py)."""

    def map_pool(self, pool: Pool) -> None: ...

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Any: ...

    def discard(self, slot: Slot) -> None: ...


class Below(Backing, Protocol):
    """What is below a tier: places for tiles, and copies to and from them."""

    def read(self, tile: Handle, slot: Slot, after: StreamEvents) -> StreamEvent:
        """Enqueue the copy of the tile's place below into `slot`, when `after` is over and the place has been filled."""

    def write(self, tile: Handle, slot: Slot, waits: StreamEvents) -> StreamEvent:
        """Enqueue the copy of `slot`, which `waits` fill, into the tile's place below."""

    def moved_nbytes(self, tile: Handle) -> int:
        """What a copy of the tile moves, in bytes."""

    def is_lost(self, tile: Handle) -> bool:
        """Whether the copy below failed to arrive. Nothing may be in flight."""


class Tier:
    """pipeline: decides, and has the ledger. below: None where nothing can leave. turns: None if loads overlap work.

    loaded_nbytes, written_nbytes: moved from and to below, counted when enqueued, never reset.
    """

    def __init__(
        self, memory: Memory, pipeline: Pipeline, below: Below | None, window: Window, turns: Turns | None
    ) -> None:
        self.memory = memory
        self.pipeline = pipeline
        self.ledger = pipeline.ledger
        self.arena = pipeline.ledger.arena
        self.below = below
        self.window = window
        self.turns = turns
        self.loaded_nbytes = 0
        self.written_nbytes = 0
        self._moves: list[Move] = []

    def admit(self, tiles: Sequence[Handle], access: str) -> None:
        """Give each tile a slot, all or none, and enqueue what that moves. BudgetError if they cannot fit together."""
        try:
            self.pipeline.admit(tiles, access, self._moves)
        finally:
            self._carry_out()

    def look_ahead(self, index: int) -> None:
        """Start the transfers of what comes after entry `index`, as deep as the prefetch goes."""
        try:
            self.pipeline.look_ahead(index, self._moves)
        finally:
            if self._moves:
                self._carry_out()

    def reads(self, tile: Handle, event: StreamEvent, next_use: int) -> None:
        """`event` reads the tile, which is used next at `next_use`."""
        reads = tile.reads
        reads.append(event)
        if len(reads) > 32:
            tile.reads = [read for read in reads if not read.done]
        self.ledger.used(tile, next_use, False)

    def writes(self, tile: Handle, event: StreamEvent | None, next_use: int) -> None:
        """`event` writes the tile (None: written already)."""
        tile.written = event
        tile.reads = []
        self.ledger.used(tile, next_use, True)

    def release(self, tile: Handle) -> None:
        """The tile is dead: its slot and its place below go to whoever comes next, behind the work still on them."""
        slot = self.ledger.release(tile)
        if slot is not None:
            slot.guard = unfinished(tile.written, *tile.reads)
        tile.array = tile.written = tile.below = None
        tile.reads = []

    def drop(self, tile: Handle) -> None:
        """Forget the copy here: there are newer bytes, or these are not whole."""
        tile.dirty = False
        slot = tile.slot
        self.ledger.evict(tile)
        self._evict(tile, slot, False)

    def give_up(self, tile: Handle) -> None:
        """Move the tile out: its newest bytes are wanted below."""
        self._moves.append(self.ledger.evict(tile))
        self._carry_out()

    def clear(self) -> None:
        """Move every tile out."""
        for tile in list(self.ledger.resident):
            self.give_up(cast(Handle, tile))

    def cut(self, demand: Demand, foreign: dict[int, int]) -> None:
        """Make the pools serve `demand`. They must be empty if arena.must_be_empty says so; nothing may be in flight."""
        if self.arena.must_be_empty(demand, foreign):
            for pool in self.arena.pools:
                pool.memory = None
            self.ledger.forget_pools()
        for slot in self.arena.make_room(demand, foreign):
            slot.guard = ()
            self.memory.discard(slot)
        for pool in self.arena.pools:
            if not pool.made:  # its address space is as much in the way as its memory
                pool.memory = None
        new = self.arena.cut(demand, foreign)
        try:
            self.back()
        except BaseException:
            self.arena.withdraw(new)
            raise

    def back(self) -> None:
        """Give the pools memory for the slots that are expected of them now."""
        for pool in self.arena.pools:
            self.memory.map_pool(pool)

    def close(self) -> None:
        """The memory is about to go: keep no view of it."""
        for tile in self.ledger.resident:
            cast(Handle, tile).array = None
        for pool in self.arena.pools:
            pool.memory = None

    def rescue(self, tile: Handle) -> bool:
        """After a failure, with nothing in flight: forget copies that are not whole. False if no whole one is left."""
        if tile.slot is not None and tile.written is not None and tile.written.error is not None:
            newest = tile.dirty
            self.drop(tile)
            if newest:  # older bytes below are no copy
                tile.valid_below = False
                return False
        if tile.below is None and tile.backing is None:
            return True
        if self.below is not None and tile.valid_below and self.below.is_lost(tile):
            tile.below, tile.valid_below = None, False
            if tile.slot is None:
                return False
            tile.dirty = True  # the copy here is the only one
        return True

    def _carry_out(self) -> None:
        moves, self._moves = self._moves, []
        for index, move in enumerate(moves):
            tile = cast(Handle, move.tile)
            try:
                if isinstance(move, Evict):
                    self._evict(tile, move.slot, move.write_back)
                elif isinstance(move, Load):
                    self._load(tile, move.slot)
                else:
                    self._place(tile, move.slot)
            except BaseException:
                # What cannot be enqueued did not happen: every tile is where it was.
                for undone in reversed(moves[index:]):
                    self.ledger.undo(undone)
                raise

    def _evict(self, tile: Handle, slot: Slot, write_back: bool) -> None:
        guard = unfinished(tile.written, *tile.reads)
        if write_back:
            assert self.below is not None
            event = tile.below = self.below.write(tile, slot, failed_or_unfinished(tile.written))
            self.written_nbytes += self.below.moved_nbytes(tile)
            self.window.add(event, tile.nbytes)
            guard = (*guard, event)
        slot.guard = guard
        tile.array = tile.written = None
        tile.reads = []

    def _load(self, tile: Handle, slot: Slot) -> None:
        assert self.below is not None
        after = unfinished(*slot.guard)
        if self.turns is not None:
            after += self.turns.work()
        tile.array = self.memory.array(slot, tile.shape, tile.dtype)
        event = tile.written = self.below.read(tile, slot, after)
        slot.guard = ()
        tile.reads = []
        if self.turns is not None:
            self.turns.loaded(event)
        self.loaded_nbytes += self.below.moved_nbytes(tile)
        self.window.add(event, tile.nbytes)

    def _place(self, tile: Handle, slot: Slot) -> None:
        tile.array = self.memory.array(slot, tile.shape, tile.dtype)
        tile.written = None
        tile.reads = list(unfinished(*slot.guard))
        slot.guard = ()


def unfinished(*events: Any) -> tuple[StreamEvent, ...]:
    """What must be over before a place is used again; how it went does not matter."""
    if not events:
        return ()
    return tuple([event for event in events if event is not None and not event.done])


def failed_or_unfinished(*events: Any) -> tuple[StreamEvent, ...]:
    """What wrote the bytes about to be read: an error must travel on."""
    return tuple([event for event in events if event is not None and (not event.done or event.error is not None)])
