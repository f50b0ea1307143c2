"""The lane of a device: issues operations in program order on the device's tier; those of the host it hands on (host_lane.py).

Runs on the device's loop only. Issuing has no await inside: an operation reserves all its tiles, is enqueued with the
events it must wait for, and is done with Python. What may wait is the coroutine around it: for an input that nobody has
enqueued yet, and for room when the host has run too far ahead (run_ahead.py).

The way not taken: a task per operation that waits for its inputs to be computed. It costs 6 to 10 us and a trip
through the loop where an event on the stream costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from asynctile.device.base import Device
from asynctile.memory.tier import Tier, failed_or_unfinished
from asynctile.program.handle import Handle
from asynctile.program.operation import HOST, READ, WRITE, Operation
from asynctile.schedule.prefetch import FAR, Order
from asynctile.storage.tile import NEVER
from asynctile.streams.lockstep import Turns
from asynctile.streams.run_ahead import Window
from asynctile.streams.stream import StreamEvent


class Lane:
    """Issue on one device.

    tier: where operands must stand. fetched_nbytes, operations: counted when enqueued, never reset.
    on_use: called with (tile, next use, wrote) where a tier below wants to know; None elsewhere.
    on_host: issues an operation of the host; None where RAM is the device.
    """

    def __init__(self, device: Device, tier: Tier, order: Order, window: Window, turns: Turns | None) -> None:
        self.device = device
        self.tier = tier
        self.order = order
        self.window = window
        self.turns = turns
        self.on_use: Callable[[Handle, int, bool], None] | None = None
        self.on_host: Callable[[Operation, Sequence[int], Any], StreamEvent] | None = None
        self.fetched_nbytes = 0
        self.operations = 0
        self._unwritten: dict[Handle, asyncio.Future[None]] = {}
        self._scratch = device.numbers(1)

    async def launch(self, operation: Operation, number: Any = None) -> StreamEvent:
        """The tile coroutine: waits until every input was enqueued, enqueues the operation, returns its event.

        For use outside a program: its tiles rank by how recently they were used. number: float64 array of length 1
        for what the operation reports. Raises the error of work that failed before it, BudgetError if it cannot fit.
        """
        await self.inputs_enqueued(operation)
        if self.window.is_full():
            await self.window.room()
        self.order.position += 1
        rank = (FAR - self.order.position,) * len(operation.operands)
        return self.issue(operation, rank, number)

    async def inputs_enqueued(self, operation: Operation) -> None:
        """Wait until somebody has enqueued the work that writes each input."""
        while (tile := self.missing_input(operation)) is not None:
            await self._written(tile, operation)

    def missing_input(self, operation: Operation) -> Handle | None:
        """An input whose first write nobody has enqueued; None if there is none."""
        for tile, how in zip(operation.operands, operation.access, strict=True):
            if tile.slot is None and how != WRITE and not tile.valid_below:
                return tile
        return None

    def issue(self, operation: Operation, next_uses: Sequence[int], number: Any) -> StreamEvent:
        """Reserve, enqueue, record: all of an operation that Python does, without an await."""
        operands, access = operation.operands, operation.access
        if number is None and operation.number is not None:
            number = self._scratch
        if operation.place == HOST and self.on_host is not None:
            event = self.on_host(operation, next_uses, number)
            self.operations += 1
            self._announce_written(operation)
            return event
        for tile in operands:
            if tile.slot is None:
                self.tier.admit(operands, access)
                break
        arrays, waits, after = ordering(operands, access)
        if self.turns is None:
            event = self.device.launch(operation, arrays, number, waits, after)
        else:
            event = self.device.launch(operation, arrays, number, waits, (*after, *self.turns.loads()))
            self.turns.worked(event)
        self.operations += 1
        self.window.add(event)
        used, on_use = self.tier.ledger.used, self.on_use
        dead = False
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
            if on_use is not None:
                on_use(tile, next_use, how != READ)
            dead = dead or (next_use == NEVER and not tile.persistent)
        self._announce_written(operation)
        if dead:  # not before: an operation may name a tile twice
            for tile, next_use in zip(operands, next_uses):  # noqa: B905
                if next_use == NEVER and not tile.persistent and tile.slot is not None:
                    self.tier.release(tile)
        return event

    def fetch(self, tile: Handle, target: np.ndarray, next_use: int) -> StreamEvent:
        """Copy a tile to a host array, in order with the operations around it."""
        if tile.slot is None:
            self.tier.admit((tile,), READ)
        event = self.device.download(target, tile.array, failed_or_unfinished(tile.written), what=tile)
        self.fetched_nbytes += tile.nbytes
        self.window.add(event, tile.nbytes)
        self.tier.reads(tile, event, next_use)
        if next_use == NEVER and not tile.persistent:
            self.tier.release(tile)
        return event

    async def _written(self, tile: Handle, operation: Operation) -> None:
        """Wait until somebody has enqueued the first write of `tile`."""
        future = self._unwritten.get(tile)
        if future is None:
            future = self._unwritten[tile] = asyncio.get_running_loop().create_future()
        names = ", ".join(operand.name for operand in operation.operands)
        await self.window.told(
            future, lambda: f"{operation.kernel}({names}) waits for tile {tile.name}, which nobody has written: launch the "
            "operation that writes it, or store it"
        )

    def _announce_written(self, operation: Operation) -> None:
        if self._unwritten:
            self.announce([tile for tile, how in zip(operation.operands, operation.access, strict=True) if how != READ])

    def announce(self, tiles: Iterable[Handle]) -> None:
        """Somebody has written these tiles, or enqueued the work that does: wake who waits for that."""
        for tile in tiles:
            if (future := self._unwritten.pop(tile, None)) is not None and not future.done():
                future.set_result(None)


def ordering(handles: Sequence[Handle], access: str) -> tuple[list[Any], list[StreamEvent], list[StreamEvent]]:
    """Arrays of the operands, what must have gone well before they are used, and what must only be over."""
    waits: list[StreamEvent] = []
    after: list[StreamEvent] = []
    arrays = []
    for handle, how in zip(handles, access):  # noqa: B905  # lengths are checked when the operation is made
        arrays.append(handle.array)
        written = handle.written
        if written is not None:
            if written.done and (written.error is None or how == WRITE):
                handle.written = None  # what is overwritten need not have gone well
            elif how == WRITE:
                after.append(written)
            else:
                waits.append(written)
        if how != READ and handle.reads:
            after += [event for event in handle.reads if not event.done]
    return arrays, waits, after
