"""An assembly: the tiers of a share and the lanes over them, on which one job runs at a time.

Also covers single operations, and the bytes of single tiles between jobs. Everything runs on the device's loop. The
runtime decides which job runs when (asynctile/runtime.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

import numpy as np

from asynctile.errors import TierError
from asynctile.launch.inputs import Inputs
from asynctile.launch.lane import Lane
from asynctile.memory.tiers import Tiers
from asynctile.program.operation import READ, WRITE, Operation
from asynctile.program.program import Fetch
from asynctile.storage.ledger import never_written
from asynctile.storage.move import Move
from asynctile.storage.residency import Residency
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, unfinished


class Assembly:
    """The tiers and lanes of one share.

    tiers: where tiles stand.
    lanes: one for each device. Single operations run on the first device, whatever place they name; results are read from any.
    inputs: tiles that nobody has written yet, and the coroutines that wait for them.
    """

    def __init__(self, tiers: Tiers) -> None:
        device, self.tiers = tiers.device, tiers
        self.run_ahead = tiers.run_ahead
        self.inputs = Inputs(tiers.copies, tiers.run_ahead)
        self.lanes = [Lane(one, top, self.inputs, self.run_ahead) for one, top in zip(tiers.devices, tiers.tops, strict=True)]
        #: where operations report a number that nobody asked for
        self._scratch = device.numbers(1)
        #: bytes that passed from one device to another, and between this node and others, never reset
        self.passed_nbytes = self.sent_nbytes = self.received_nbytes = 0

    @property
    def operations(self) -> int:
        """Number of operations enqueued so far."""
        return sum(lane.operations for lane in self.lanes)

    @property
    def fetched_nbytes(self) -> int:
        """Bytes of results copied to the host so far."""
        return sum(lane.fetched_nbytes for lane in self.lanes)

    async def launch(self, operation: Operation, number: np.ndarray | None) -> StreamEvent:
        """Enqueue one operation outside a program; return its event. number: where it reports its number.

        Its tiles are ranked by how recently they were used, since nothing is known of their next use.
        """
        if number is None and operation.number is not None:
            number = self._scratch
        tiers = self.tiers
        await tiers.caps.unpack()
        tiers.copies.bring_down(operation.operands)
        tiers.rank -= 1
        return await self.lanes[0].perform(operation, tiers.rank, number)

    async def put(self, tile: Tile, value: np.ndarray) -> None:
        """Put host bytes in a tile that no work in flight uses. A cancelled put leaves the tile as it was."""
        check_value(tile, value)
        await self._make_place(tile)
        in_ram, placed = self._in_ram(tile)
        try:
            for event in (*in_ram.reads, *unfinished(in_ram.written)):  # also a copy that still loads older bytes into the slot
                await self.run_ahead.settled(event)
        except BaseException:
            self.tiers.host.take_back(placed)
            raise
        np.copyto(in_ram.array, value)
        self._was_put(tile, in_ram)

    async def put_all(self, tiles: Iterable[tuple[Tile, np.ndarray]] | AsyncGenerator[tuple[Tile, np.ndarray]]) -> None:
        """Put each value in its tile, see `put`. An async iterator is closed at the end."""
        if not isinstance(tiles, AsyncGenerator):
            for tile, value in tiles:
                await self.put(tile, value)
            return
        async with aclosing(tiles):
            async for tile, value in tiles:
                await self.put(tile, value)

    async def read(self, tile: Tile) -> np.ndarray:
        """Return a copy of a tile's newest bytes. Nothing may be in flight."""
        tiers, copy = self.tiers, np.empty(tile.shape, tile.dtype)
        if not tiers.copies.is_written(tile):
            raise never_written(tile)
        device = tiers.copies.device_of(tile)
        if device is None:
            await self._make_place(tile)
        if device is None and tiers.link is not None:
            await self._read_in_ram(tile, copy)
        else:
            lane = self.lanes[device or 0]
            await self._arrived(await lane.perform(Fetch(tile, "", ()), lane.tier.of(tile).next_use, copy), tile)
        return copy

    def release(self, tiles: Iterable[Tile]) -> None:
        """Free tiles that will not be used again."""
        self.tiers.copies.release(tiles)

    async def _read_in_ram(self, tile: Tile, copy: np.ndarray) -> None:
        """Copy the newest bytes of a tile that stands on no device."""
        host, in_ram = self.tiers.host, self.tiers.copies.place(tile)
        if in_ram.slot is None:
            host.admit((in_ram,), READ)
            host.ledger.used(in_ram, self.tiers.top.of(tile).next_use, False)
        if in_ram.written is not None:
            await self._arrived(in_ram.written, tile)
        np.copyto(copy, in_ram.array)

    async def _make_place(self, tile: Tile) -> None:
        """Make sure that RAM has slots if the tile stands nowhere in RAM: between jobs nothing has planned a place for it."""
        host = self.tiers.host
        if host.arena.packed and host.of(tile).slot is None:
            await self.tiers.caps.unpack()

    def _in_ram(self, tile: Tile) -> tuple[Residency, Sequence[Move]]:
        """Return the tile's residency in RAM, with a slot, and the moves that gave it the slot now."""
        residency = self.tiers.copies.place(tile)
        return residency, self.tiers.host.admit((residency,), WRITE)

    def _was_put(self, tile: Tile, in_ram: Residency) -> None:
        """Note that the host has written the tile in RAM: every other copy of it is outdated."""
        self.tiers.host.written_by(in_ram, None, self.tiers.rank)
        self.tiers.copies.replace(tile)
        self.inputs.announce((tile,))

    async def _arrived(self, event: StreamEvent, tile: Tile) -> None:
        """Wait until the tile's bytes have come.

        If they fail to come, forget copies that are not whole, so that a later try starts afresh.
        """
        try:
            await self.run_ahead.landed(event)
        except Exception as error:
            await self.run_ahead.settle()
            if self.run_ahead.stalled is None:
                self.tiers.copies.rescue(tile)
            if isinstance(error, TierError):
                raise
            raise TierError(
                f"tile {tile.name} cannot be read because the work that wrote it failed: {error}"
            ) from error
        await self.run_ahead.settle()


def check_value(tile: Tile, value: np.ndarray) -> None:
    """Raise ValueError or TypeError for an array that the tile cannot take."""
    if value.shape != tile.shape:
        raise ValueError(f"{tile.name} takes an array of shape {tile.shape}, not {value.shape}")
    if not np.can_cast(value.dtype, tile.dtype, "same_kind"):
        raise TypeError(f"{tile.name} takes an array of {tile.dtype}, not {value.dtype}")
