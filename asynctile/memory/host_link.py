"""The link between a device and RAM: what the device's tier has below it.

Every tile below the device has a `Copy`, a handle of its own in the tier of RAM. So RAM keeps its own ledger, with another
tier below it where there is one, and a tile may be on the device, in RAM and in a file at once.
"""

from __future__ import annotations

from typing import cast

from asynctile.device.base import Device
from asynctile.memory.tier import Tier, unfinished
from asynctile.program.handle import Handle
from asynctile.program.operation import READ, WRITE
from asynctile.program.program import in_ram
from asynctile.storage.arena import Slot
from asynctile.storage.tile import NEVER, Tile
from asynctile.streams.stream import StreamEvent, StreamEvents


class Copy(Handle):
    """What stands in RAM for `owner`, in its shape. Its next use is the next load of the owner, or its use in RAM itself."""

    __slots__ = ("owner",)

    def __init__(self, owner: Handle) -> None:
        super().__init__(owner.name, owner.shape, owner.dtype, persistent=True)
        self.owner = owner


class HostLink:
    """Copies between `device` and the tier `host`."""

    def __init__(self, device: Device, host: Tier) -> None:
        self.device = device
        self.host = host

    def take(self, tile: Tile) -> Copy:
        """A place for a tile; its bytes in RAM are claimed when they are written."""
        return Copy(cast(Handle, tile))

    def give(self, tile: Tile) -> None:
        self.host.release(tile.backing)

    def read(self, tile: Handle, slot: Slot | None, after: StreamEvents) -> StreamEvent:
        copy: Copy = tile.backing
        if copy.slot is None:
            self.host.admit((copy,), READ)
        waits: tuple[StreamEvent, ...] = ()
        written = copy.written
        if written is not None:
            if written.done and written.error is None:
                copy.written = None
            else:
                waits = (written,)
        event = self.device.upload(tile.array, copy.array, waits, after, tile)
        self.host.reads(copy, event, in_ram(tile.next_use))
        return event

    def write(self, tile: Handle, slot: Slot, waits: StreamEvents) -> StreamEvent:
        copy: Copy = tile.backing
        if copy.slot is None:
            self.host.admit((copy,), WRITE)
        event = self.device.download(copy.array, tile.array, waits, unfinished(copy.written, *copy.reads), tile)
        self.host.writes(copy, event, in_ram(tile.next_use))
        return event

    def moved_nbytes(self, tile: Handle) -> int:
        return tile.nbytes

    def is_lost(self, tile: Handle) -> bool:
        copy: Copy | None = tile.backing
        return copy is not None and not self.host.rescue(copy)

    def used(self, tile: Handle, next_use: int, wrote: bool) -> None:
        """The device used the tile: what RAM has of it is old now, or wanted again at `next_use`."""
        copy: Copy | None = tile.backing
        if copy is None:
            return
        if wrote:
            tile.valid_below = copy.valid_below = False
            if copy.slot is not None:
                self.host.ledger.used(copy, NEVER, False)
                copy.dirty = False
        elif copy.slot is not None:
            self.host.ledger.used(copy, in_ram(next_use), False)
