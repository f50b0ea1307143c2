"""The lane of a device: issues operations in program order and carries out the moves that the pipeline decides.

Runs on the device's loop only. Issuing has no await inside: an operation reserves all its tiles, is enqueued with the
events it must wait for, and is done with Python. What may wait is the coroutine around it: for an input that nobody has
enqueued yet, and for room when the host has run too far ahead.

The way not taken: a task per operation that waits for its inputs to be computed. It costs 6 to 10 us and a trip
through the loop where an event on the stream costs nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from asynctile.device.base import Device
from asynctile.handle import Handle
from asynctile.operation import READ, WRITE, Operation
from asynctile.pipeline import FAR, Pipeline
from asynctile.storage.arena import Slot
from asynctile.storage.residency import Evict, Ledger, Load, Move
from asynctile.storage.tile import NEVER
from asynctile.stream import Event

#: The host runs at most this far ahead of the device: so it sleeps, and leaves the interpreter to the workers.
RUN_AHEAD_OPERATIONS = 96
RUN_AHEAD_NBYTES = 512 << 20


class Lane:
    """Issue on one device.

    uploaded_nbytes, downloaded_nbytes, operations: counted when enqueued, never reset.
    overlap: loads run beside compute. Without (prefetch 0) each waits for the work before it, and work waits for it.
    """

    def __init__(self, device: Device, ledger: Ledger, prefetch: int) -> None:
        self.device = device
        self.ledger = ledger
        self.pipeline = Pipeline(ledger, prefetch)
        self.overlap = prefetch > 0
        self.uploaded_nbytes = 0
        self.downloaded_nbytes = 0
        self.operations = 0
        self._moves: list[Move] = []
        self._window: deque[tuple[Event, int]] = deque()
        self._window_nbytes = 0
        self._unwritten: dict[Handle, asyncio.Future[None]] = {}
        self._scratch = np.zeros(1)
        self._loads_before: tuple[Event, ...] = ()
        self._work_before: list[Event] = []

    async def launch(self, operation: Operation, number: Any = None) -> Event:
        """The tile coroutine: waits until every input was enqueued, enqueues the operation, returns its event.

        For use outside a program: its tiles rank by how recently they were used. number: float64 array of length 1
        for what the operation reports. Raises the error of work that failed before it, BudgetError if it cannot fit.
        """
        await self.inputs_enqueued(operation)
        if self.is_far_ahead():
            await self.room()
        self.pipeline.position += 1
        rank = (FAR - self.pipeline.position,) * len(operation.operands)
        event = self.issue(operation, rank, number)
        if self._unwritten:
            self._announce(operation.operands, operation.access)
        return event

    async def inputs_enqueued(self, operation: Operation) -> None:
        """Wait until somebody has enqueued the work that writes each input."""
        for tile, how in zip(operation.operands, operation.access, strict=True):
            if tile.slot is None and how != WRITE and not tile.valid_below:
                await self._written(tile)

    def issue(self, operation: Operation, next_uses: Sequence[int], number: Any) -> Event:
        """Reserve, enqueue, record: all of an operation that Python does, without an await."""
        operands, access = operation.operands, operation.access
        for tile in operands:
            if tile.slot is None:
                self._admit(operands, access)
                break
        waits: list[Event] = []
        arrays = []
        for tile, how in zip(operands, access):  # noqa: B905  # lengths are checked when the operation is made
            arrays.append(tile.array)
            written = tile.written
            if written is not None:
                if written.done and (written.error is None or how == WRITE):
                    tile.written = None  # what is overwritten need not have gone well
                else:
                    waits.append(written)
            if how != READ and tile.reads:
                waits += [event for event in tile.reads if not event.done]
        if number is None and operation.number is not None:
            number = self._scratch
        if self.overlap:
            event = self.device.launch(operation, arrays, number, waits)
        else:
            event = self.device.launch(operation, arrays, number, (*waits, *_unfinished(*self._loads_before)))
            self._work_before = [*_unfinished(*self._work_before), event]
        self.operations += 1
        self._window.append((event, 0))
        used = self.ledger.used
        for tile, how, next_use in zip(operands, access, next_uses):  # noqa: B905
            if how == READ:
                tile.reads.append(event)
                if len(tile.reads) > 32:
                    tile.reads = [read for read in tile.reads if not read.done]
                used(tile, next_use, False)
            else:
                tile.written = event
                tile.reads = []
                used(tile, next_use, True)
            if next_use == NEVER and not tile.persistent:
                self.release(tile)
        return event

    def fetch(self, tile: Handle, target: np.ndarray, next_use: int) -> Event:
        """Copy a tile to a host array, in order with the operations around it."""
        if tile.slot is None:
            self._admit((tile,), READ)
        event = self.device.download(target, tile.array, _failed_or_unfinished(tile.written))
        self._count_download(event, tile.nbytes)
        tile.reads.append(event)
        self.ledger.used(tile, next_use, False)
        if next_use == NEVER and not tile.persistent:
            self.release(tile)
        return event

    def look_ahead(self, index: int) -> None:
        """Start the transfers of the operations after entry `index`, as deep as the prefetch goes."""
        try:
            self.pipeline.look_ahead(index, self._moves)
        finally:
            if self._moves:
                self._carry_out()

    def release(self, tile: Handle) -> None:
        """The tile is dead: its slot and its backing go to whoever comes next, behind the work still on them."""
        block = tile.backing
        if block is not None:
            block.guard = _unfinished(tile.below, tile.written)
        slot = self.ledger.release(tile)
        if slot is not None:
            slot.guard = _unfinished(tile.written, *tile.reads)
        tile.array = tile.written = tile.below = None
        tile.reads = []

    def is_far_ahead(self) -> bool:
        """Whether the host has enqueued as much as it may, in operations or in bytes to be copied."""
        return len(self._window) >= RUN_AHEAD_OPERATIONS or self._window_nbytes > RUN_AHEAD_NBYTES

    async def room(self) -> None:
        """Wait until the host is within its limit again; raises the error of work that failed."""
        self._forget_done()
        while self.is_far_ahead():
            middle = self._window[len(self._window) // 2][0]
            # Streams overtake each other: while the head is not done, waiting for a middle that is would spin.
            await (self._window[0][0] if middle.done else middle).settled()
            self._forget_done()

    def admit_for_host(self, tile: Handle) -> None:
        """A slot for a tile that the host will fill in place, on devices without a link."""
        self._admit((tile,), WRITE)
        self.ledger.used(tile, FAR, True)

    def drop(self, tile: Handle) -> None:
        """Forget the device copy: the host has newer bytes for the backing."""
        slot = tile.slot
        tile.dirty = False
        self.ledger.evict(tile)
        self._evict(tile, slot, False)

    def clear(self) -> None:
        """Move every tile off the device."""
        for tile in list(self.ledger.resident):
            self._moves.append(self.ledger.evict(tile))
        self._carry_out()

    def close(self) -> None:
        """The device is gone: let go of its memory."""
        for tile in self.ledger.resident:
            cast(Handle, tile).array = None
        for pool in self.ledger.arena.pools:
            pool.memory = None

    def rescue(self, tiles: Iterable[Handle]) -> list[Handle]:
        """After a failure: forget copies of tiles that are not whole; returns those with no whole copy left."""
        lost = []
        for tile in tiles:
            below_failed = tile.below is not None and tile.below.error is not None
            here_failed = tile.written is not None and tile.written.error is not None
            if tile.slot is not None and here_failed:
                below_failed |= tile.dirty  # older bytes below are no copy
                self.drop(tile)
            if below_failed and tile.slot is None:
                lost.append(tile)
                tile.valid_below = False
                tile.below = None
        return lost

    async def drain(self) -> None:
        """Wait until everything that was enqueued has run; raises the first error among it."""
        failed: BaseException | None = None
        while self._window:
            event, nbytes = self._window[0]
            await event.settled()
            failed = failed or event.error
            if self._window and self._window[0][0] is event:  # nobody else dropped it meanwhile
                self._window.popleft()
                self._window_nbytes -= nbytes
        if failed is not None:
            raise failed

    async def settle(self) -> None:
        """Wait until everything that was enqueued has run, well or not: its events say how."""
        while self._window:
            try:
                await self.drain()
            except Exception:  # drain has emptied the window before it raises
                continue

    def _forget_done(self) -> None:
        window = self._window
        while window and window[0][0].done:
            event, nbytes = window.popleft()
            self._window_nbytes -= nbytes
            if event.error is not None:
                raise event.error

    def _admit(self, tiles: tuple[Handle, ...], access: str) -> None:
        try:
            self.pipeline.admit(tiles, access, self._moves)
        finally:
            self._carry_out()

    def _carry_out(self) -> None:
        moves, self._moves = self._moves, []
        for move in moves:
            if isinstance(move, Evict):
                self._evict(move.tile, move.slot, move.write_back)  # type: ignore[arg-type]
            elif isinstance(move, Load):
                self._load(move.tile, move.slot)  # type: ignore[arg-type]
            else:
                self._place(move.tile, move.slot)  # type: ignore[arg-type]

    def _evict(self, tile: Handle, slot: Slot, write_back: bool) -> None:
        guard = _unfinished(tile.written, *tile.reads)
        if write_back:
            block = tile.backing
            waits = _failed_or_unfinished(tile.written) + _unfinished(tile.below, *block.guard)
            block.guard = ()
            event = self.device.download(block.array(tile.shape, tile.dtype), tile.array, waits)
            self._count_download(event, tile.nbytes)
            tile.below = event
            guard = (*guard, event)
        slot.guard = guard
        tile.array = tile.written = None
        tile.reads = []

    def _load(self, tile: Handle, slot: Slot) -> None:
        waits = _failed_or_unfinished(tile.below) + _unfinished(*slot.guard)
        slot.guard = ()
        tile.array = self.device.array(slot, tile.shape, tile.dtype)
        if not self.overlap:
            waits += _unfinished(*self._work_before)
        event = self.device.upload(tile.array, tile.backing.array(tile.shape, tile.dtype), waits)
        if not self.overlap:
            self._loads_before = (*_unfinished(*self._loads_before), event)
        self.uploaded_nbytes += tile.nbytes
        self._count_copy(event, tile.nbytes)
        tile.written = event
        tile.reads = []

    def _place(self, tile: Handle, slot: Slot) -> None:
        tile.array = self.device.array(slot, tile.shape, tile.dtype)
        tile.written = None
        tile.reads = list(_unfinished(*slot.guard))
        slot.guard = ()

    def _count_download(self, event: Event, nbytes: int) -> None:
        self.downloaded_nbytes += nbytes
        self._count_copy(event, nbytes)

    def _count_copy(self, event: Event, nbytes: int) -> None:
        self._window.append((event, nbytes))
        self._window_nbytes += nbytes

    async def _written(self, tile: Handle) -> None:
        """Wait until somebody has enqueued the first write of `tile`."""
        future = self._unwritten.get(tile)
        if future is None:
            future = self._unwritten[tile] = asyncio.get_running_loop().create_future()
        await asyncio.shield(future)

    def _announce(self, operands: Sequence[Handle], access: str) -> None:
        for tile, how in zip(operands, access, strict=True):
            if how != READ and (future := self._unwritten.pop(tile, None)) is not None and not future.done():
                future.set_result(None)




def _unfinished(*events: Any) -> tuple[Event, ...]:
    """What must be over before a place is used again; how it went does not matter."""
    return tuple([event for event in events if event is not None and not event.done])


def _failed_or_unfinished(*events: Any) -> tuple[Event, ...]:
    """What wrote the bytes about to be read: an error must travel on."""
    return tuple([event for event in events if event is not None and (not event.done or event.error is not None)])
