"""Operations of the host: they run in RAM, on what stands there for their tiles (asynctile/memory/host_link.py).

Beside the device and in program order with it, by events. What the device has changed comes down first; what such an operation
writes is newest in RAM, and the device's copy of it is dropped. So a gradient that dies here crosses the link once. The lane
of the device (lane.py) hands these operations on; which they are is decided by whoever records a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asynctile.device.base import Device
from asynctile.memory.host_link import Copy, HostLink
from asynctile.memory.tier import Tier
from asynctile.program.handle import Handle
from asynctile.program.operation import READ, WRITE, Operation
from asynctile.program.program import in_ram
from asynctile.run.lane import ordering
from asynctile.storage.residency import never_written
from asynctile.storage.tile import NEVER
from asynctile.streams.lockstep import Turns
from asynctile.streams.run_ahead import Window
from asynctile.streams.stream import StreamEvent


class HostLane:
    """Issue in RAM, the tier `host`, below the device's tier `top`."""

    def __init__(
        self, device: Device, top: Tier, host: Tier, link: HostLink, window: Window, turns: Turns | None
    ) -> None:
        self.device = device
        self.top = top
        self.host = host
        self.link = link
        self.window = window
        self.turns = turns

    def issue(self, operation: Operation, next_uses: Sequence[int], number: Any) -> StreamEvent:
        """Reserve, bring down, enqueue, record; without an await. next_uses: as the device ranks them."""
        operands, access = operation.operands, operation.access
        copies = self._admit(operands, access)
        for tile, how in zip(operands, access, strict=True):
            if tile.slot is not None and tile.dirty and how != WRITE:
                self.top.give_up(tile)
        arrays, waits, after = ordering(copies, access)
        if self.turns is not None:
            after += self.turns.loads()
        event = self.device.launch_on_host(operation, arrays, number, waits, after)
        if self.turns is not None:
            self.turns.worked(event)
        self.window.add(event, beside=True)
        for tile, copy, how, next_use in zip(operands, copies, access, next_uses, strict=True):
            self._used(tile, copy, how, next_use, event)
        for tile, next_use in zip(operands, next_uses, strict=True):  # not before: an operation may name a tile twice
            if next_use == NEVER and not tile.persistent and tile.backing is not None:
                self.top.release(tile)
        return event

    def _admit(self, operands: Sequence[Handle], access: str) -> list[Copy]:
        """The copies in RAM, each with a slot, all or none; nothing has left the device if there is no room."""
        for tile, how in zip(operands, access, strict=True):
            if tile.slot is None and how != WRITE and not tile.valid_below:
                raise never_written(tile)
            if tile.backing is None:
                tile.backing = self.link.take(tile)
        copies: list[Copy] = [tile.backing for tile in operands]
        needs = [WRITE if tile.slot is not None and tile.dirty else how for tile, how in zip(operands, access, strict=True)]
        self.host.admit(copies, "".join(needs))
        return copies

    def _used(self, tile: Handle, copy: Copy, how: str, next_use: int, event: StreamEvent) -> None:
        if how == READ:
            self.host.reads(copy, event, in_ram(next_use))
        else:
            if tile.slot is not None:
                self.top.drop(tile)
            tile.valid_below, tile.below = True, None
            self.host.writes(copy, event, in_ram(next_use))
        if tile.slot is not None:
            self.top.ledger.used(tile, next_use, False)
        else:
            tile.next_use = next_use
            self.top.pipeline.back_to(next_use)
