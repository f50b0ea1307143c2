"""The link between a device and RAM, the tier below it.

A tile's place in RAM is its residency in the tier of RAM. So RAM keeps its own ledger and may have another tier below
it, and a tile may be on the device, in RAM and in a file at once. Its next use in RAM is its next load onto the device,
or its next use by an operation of the host.
"""

from __future__ import annotations

from asynctile.device.base import Device
from asynctile.memory.tier import Tier
from asynctile.program.operation import READ, WRITE
from asynctile.storage.residency import Residency
from asynctile.storage.slot import Slot
from asynctile.streams.event import StreamEvent, StreamEvents, unfinished


class HostLink:
    """Copies between `device` and the tier `host`. A `residency` here is one on the device, a `copy` one in RAM."""

    def __init__(self, device: Device, host: Tier) -> None:
        self.device = device
        self.host = host

    def take(self, residency: Residency) -> Residency:
        """Return the tile's residency in RAM as its place. It gets a slot there when bytes are written."""
        return self.host.of(residency.tile)

    def give(self, residency: Residency) -> None:
        self.host.release(residency.backing)

    def read(self, residency: Residency, slot: Slot, after: StreamEvents) -> StreamEvent:
        copy: Residency = residency.backing
        if copy.slot is None:
            self.host.admit((copy,), READ)
        waits: tuple[StreamEvent, ...] = ()
        written = copy.written
        if written is not None:
            if written.done and written.error is None:
                copy.written = None
            else:
                waits = (written,)
        event = self.device.upload(residency.array, copy.array, waits, after, residency.tile)
        self.host.read_by(copy, event, residency.next_use)
        return event

    def write(self, residency: Residency, slot: Slot, waits: StreamEvents) -> StreamEvent:
        copy: Residency = residency.backing
        if copy.slot is None:
            self.host.admit((copy,), WRITE)
        after = unfinished(copy.written, *copy.reads)
        event = self.device.download(copy.array, residency.array, waits, after, residency.tile)
        self.host.written_by(copy, event, residency.next_use)
        return event

    def moved_nbytes(self, residency: Residency) -> int:
        return residency.tile.nbytes

    def is_lost(self, residency: Residency) -> bool:
        return residency.backing is not None and not self.host.rescue(residency.backing)
