"""The lane of the host: operations that run in RAM, on the bytes that RAM has of their tiles.

They run beside the device, ordered with it by events. Tiles that the device has changed are written back first. If such
an operation writes a tile, the newest bytes are in RAM, and the device's copy is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asynctile.device.base import Device
from asynctile.launch.inputs import Inputs
from asynctile.launch.lane import Lane
from asynctile.memory.host_link import HostLink
from asynctile.memory.tier import Tier
from asynctile.program.operation import READ, WRITE, Operation
from asynctile.program.program import Entry
from asynctile.storage.move import Move
from asynctile.storage.residency import DIRTY, REPLACE, Residency
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, StreamEvents
from asynctile.streams.run_ahead import RunAhead


class HostLane(Lane):
    """The lane of operations in RAM, the tier of `link`, which is below the device's tier `top`."""

    stand_here = False  # tiles that the device has changed must be written back first

    def __init__(self, device: Device, top: Tier, link: HostLink, inputs: Inputs, run_ahead: RunAhead) -> None:
        super().__init__(device, link.host, inputs, run_ahead)
        self.top = top
        self.link = link

    def _admit(self, entry: Entry, operands: Sequence[Residency]) -> Sequence[Move]:
        """Give all operands slots in RAM, or none. Without room in RAM, nothing leaves the device."""
        above, access = [self.top.of(tile) for tile in entry.tiles], entry.access
        for residency in above:
            if residency.backing is None:
                residency.backing = self.link.take(residency)
        needs = [WRITE if up.state is DIRTY else how for up, how in zip(above, access, strict=True)]
        placed = self.tier.admit(operands, "".join(needs))
        try:
            for residency, how in zip(above, access, strict=True):
                if residency.state is DIRTY and how != WRITE:
                    self.top.give_up(residency)
                    # This tile was written back to its slot, and stays there whatever becomes of the operation.
                    placed = [move for move in placed if move.residency is not residency.backing]
        except BaseException:
            self.tier.take_back(placed)
            raise
        return placed

    def _enqueue(
        self, entry: Entry, arrays: Sequence[Any], target: Any, waits: StreamEvents, after: StreamEvents
    ) -> StreamEvent:
        assert isinstance(entry, Operation)
        self.operations += 1
        event = self.device.launch_on_host(entry, arrays, target, waits, after)
        self.run_ahead.add(event, beside=True)
        return event

    def _used(
        self, tiles: Sequence[Tile], operands: Sequence[Residency], access: str, rank: int, event: StreamEvent
    ) -> None:
        for tile, copy, how in zip(tiles, operands, access, strict=True):
            above = self.top.of(tile)
            if how == READ:
                self.tier.read_by(copy, event, rank)
            else:
                self.top.drop(above, REPLACE)
                above.saved = None
                self.tier.written_by(copy, event, rank)
            if above.slot is not None:
                self.top.ledger.used(above, rank, False)
