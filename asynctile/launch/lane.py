"""The tile coroutine of a single operation, and the lane of the device that it goes through.

`Lane.perform` carries out an operation that is launched by itself, when nothing is known of the operations after it. Programs
are carried out by their schedules instead (issuer.py).

The coroutine waits for inputs that nobody has enqueued yet, and for room if the host has run too far ahead. Then,
without an await, it takes all its tiles at once and enqueues the kernel behind the events of the tiles' other users.
That is the end of its Python. Everything runs on the device's loop.

The way not taken: wait until the inputs have been computed. That costs 6 to 10 us and a trip through the loop; an event
on the stream costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asynctile.device.base import Device
from asynctile.launch.inputs import Inputs
from asynctile.memory.tier import Tier
from asynctile.program.operation import READ, WRITE, Operation
from asynctile.program.program import Entry, Fetch
from asynctile.storage.move import Move
from asynctile.storage.residency import ABSENT, Residency
from asynctile.streams.event import StreamEvent, StreamEvents
from asynctile.streams.run_ahead import RunAhead


class Lane:
    """The lane of one device of a share.

    tier: tier in which operands must stand.
    fetched_nbytes, operations: counted when enqueued, never reset.
    """

    def __init__(self, device: Device, tier: Tier, inputs: Inputs, run_ahead: RunAhead) -> None:
        self.device = device
        self.tier = tier
        self.inputs = inputs
        self.run_ahead = run_ahead
        self.fetched_nbytes = 0
        self.operations = 0

    async def perform(self, entry: Entry, rank: int, target: Any = None) -> StreamEvent:
        """Run the tile coroutine of one entry; return the event of the work that it enqueued.

        rank: rank of its tiles from now on.
        target: float64 array (1,) for the number that a kernel reports, or the host array that a fetch fills.

        Raises the error of earlier work that failed, BudgetError if the tiles do not fit together, and StalledError for
        an input that nobody writes.
        """
        access, ledger = entry.access, self.tier.ledger
        try:
            operands = [tile.at[ledger] for tile in entry.tiles]
        except KeyError:  # this tier has not met all of the tiles
            operands = [ledger.of(tile) for tile in entry.tiles]
        stand = True
        for residency in operands:
            if residency.slot is None:
                stand = False
                break
        if not stand:
            for residency, how in zip(operands, access):  # noqa: B905  # lengths are checked when the operation is made
                if residency.state is ABSENT and how != WRITE:
                    await self.inputs.enqueued(entry)
                    break
        if self.run_ahead.is_full():
            await self.run_ahead.room()
            stand = False
        # No await from here on: an operation takes all its tiles or none.
        placed: Sequence[Move] = ()
        try:
            if not stand:
                placed = self.tier.admit(operands, access)
            arrays, waits, after = ordering(operands, access)
            event = self._enqueue(entry, arrays, target, waits, after)
        except BaseException:
            self.tier.take_back(placed)
            raise
        self._used(operands, access, rank, event)
        if self.inputs.awaited:
            self.inputs.announce([tile for tile, how in zip(entry.tiles, access, strict=True) if how != READ])
        return event

    def _enqueue(
        self, entry: Entry, arrays: Sequence[Any], target: Any, waits: StreamEvents, after: StreamEvents
    ) -> StreamEvent:
        """Hand the work to the device; return its event."""
        if type(entry) is Operation:
            self.operations += 1
            event = self.device.launch(entry, arrays, target, waits, after)
            self.run_ahead.add(event)
        else:
            assert isinstance(entry, Fetch)
            self.fetched_nbytes += entry.tile.nbytes
            event = self.device.download(target, arrays[0], waits, after, entry.tile)
            self.run_ahead.add(event, entry.tile.nbytes)
        return event

    def _used(self, operands: Sequence[Residency], access: str, rank: int, event: StreamEvent) -> None:
        """Leave `event` and the rank with the tiles, for their next users."""
        for residency, how in zip(operands, access):  # noqa: B905
            note = self.tier.read_by if how == READ else self.tier.written_by
            note(residency, event, rank)


def ordering(operands: Sequence[Residency], access: str) -> tuple[list[Any], list[StreamEvent], list[StreamEvent]]:
    """Return the arrays of the operands, the events that must have succeeded, and the events that must only be over."""
    waits: list[StreamEvent] = []
    after: list[StreamEvent] = []
    arrays = []
    for residency, how in zip(operands, access):  # noqa: B905  # lengths are checked when the operation is made
        arrays.append(residency.array)
        written = residency.written
        if written is not None:
            if written.done and (written.error is None or how == WRITE):
                residency.written = None  # bytes to be overwritten need not be good
            elif how == WRITE:
                after.append(written)
            else:
                waits.append(written)
        if how != READ and residency.reads:
            after += [event for event in residency.reads if not event.done]
    return arrays, waits, after
