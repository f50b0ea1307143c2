"""The copies of a tile on the devices of a share, over the one in RAM: which is the newest, and how the others give way.

Devices have ledgers of their own, which know nothing of each other. Over all devices of a tile, one of these holds:
- Nobody has written the tile: it is absent on every device.
- One device has it dirty: no other device has a copy, and the copy in RAM is older. A temporary that was handed over is dirty
  on several devices, with the same bytes.
- Otherwise the newest bytes are in RAM or below it, and any device may have a clean copy.
A device on which the tile is stored or absent has no copy. Whether RAM has the newest bytes, the other devices say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from asynctile.memory.tier import Tier
from asynctile.storage.residency import ABSENT, LOSE, REPLACE, Residency
from asynctile.storage.tile import Tile


class Copies:
    """The copies in `tops`, the tiers of the devices, over `host`, the tier in RAM. Where RAM is the device, both are one."""

    def __init__(self, tops: Sequence[Tier], host: Tier) -> None:
        self.tops = tops
        self.host = host

    def is_written(self, tile: Tile) -> bool:
        """Return whether the tile has bytes anywhere."""
        for top in self.tops:
            residency = top.met(tile)
            if residency is not None and residency.state is not ABSENT:
                return True
        return False

    def device_of(self, tile: Tile) -> int | None:
        """Return the number of a device that has the newest bytes of the tile; None if none has them."""
        met = ((number, top.met(tile)) for number, top in enumerate(self.tops))
        return next((number for number, residency in met if residency is not None and residency.slot is not None), None)

    def place(self, tile: Tile) -> Residency:
        """Return the tile's residency in RAM, which is its place below every device."""
        first, in_ram = self.tops[0].of(tile), self.host.of(tile)
        if first is not in_ram:
            first.backing = in_ram
        return in_ram

    def drop(self, top: Tier, residency: Residency) -> None:
        """Drop a copy on a device, if it has one: the newest bytes are in RAM or on another device."""
        residency.backing = self.host.of(residency.tile)
        top.drop(residency, REPLACE)
        residency.saved = None

    def bring_down(self, tiles: Collection[Tile]) -> None:
        """Let all devices but the first give up these tiles: then RAM or the first one has the newest bytes.

        RAM must have slots. BudgetError if it has no room, with the tile where it was. Nothing is awaited.
        """
        for top in self.tops[1:]:
            for tile in tiles:
                residency = top.met(tile)
                if residency is not None and residency.state is not ABSENT:
                    if residency.slot is not None:
                        top.give_up(residency)
                    self._tell_first(tile)

    def give_up(self, copies: Iterable[Residency]) -> None:
        """Evict these copies, as `bring_down` does. The first device learns that their tiles have bytes below it."""
        for residency in copies:
            top = next(top for top in self.tops if top.met(residency.tile) is residency)
            top.give_up(residency)
            if top is not self.tops[0]:
                self._tell_first(residency.tile)

    def replace(self, tile: Tile) -> None:
        """Note that the host has written the tile in RAM: every copy on a device is outdated."""
        if self.tops[0] is not self.host:
            for top, residency in self._known(tile):
                self.drop(top, residency)
            self._tell_first(tile)

    def release(self, tiles: Iterable[Tile]) -> None:
        """Free dead tiles on every device and below. The next owners of their slots wait for the work that is still on them."""
        for tile in tiles:
            for top in self.tops:
                residency = top.met(tile)
                if residency is not None and (residency.state is not ABSENT or residency.backing is not None):
                    top.release(residency)

    def rescue(self, tile: Tile) -> bool:
        """After a failure, forget copies that are not whole; return False if no whole one is left. Nothing may be in flight."""
        whole = [top.forget_failed(residency) for top, residency in self._known(tile)]
        if not all(whole):
            self._forget(tile)  # the newest bytes are lost, and all others are older
            return False
        known = self._known(tile)
        if not any(top.is_lost_below(residency) for top, residency in known):
            return True
        top, kept = min(known, key=lambda one: one[1].slot is None)  # a copy on a device, if there is one
        self._forget(tile, but=kept)
        return top.keep(kept)

    def _known(self, tile: Tile) -> list[tuple[Tier, Residency]]:
        """Return the tier of each device that knows of the tile's bytes, with the tile's residency there."""
        met = ((top, top.met(tile)) for top in self.tops)
        return [(top, residency) for top, residency in met if residency is not None and residency.state is not ABSENT]

    def _tell_first(self, tile: Tile) -> None:
        """Let the first device know that the tile's bytes are below it, if it has never heard of them."""
        first = self.tops[0].of(tile)
        if first.state is ABSENT:
            self.drop(self.tops[0], first)

    def _forget(self, tile: Tile, but: Residency | None = None) -> None:
        """Forget the tile's bytes on every device, except for the residency `but`."""
        for top, residency in self._known(tile):
            if residency is not but:
                top.drop(residency, LOSE)
                residency.saved = None
