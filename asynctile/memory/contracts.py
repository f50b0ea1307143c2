"""Protocols of the things that a tier (asynctile/memory/tier.py) stands on: memory for its slots, and a link to the tier below.

Devices and storage/host.py are such memory; host_link.py and spill_link.py are such links.
"""

from __future__ import annotations

from typing import Any, Protocol

from asynctile.storage.ground import Ground
from asynctile.storage.ledger import Backing
from asynctile.storage.pool import Pool
from asynctile.storage.residency import Residency
from asynctile.storage.slot import Slot
from asynctile.streams.event import StreamEvent, StreamEvents


class Memory(Protocol):
    """The memory behind an arena: a device, or storage/host.py."""

    def map_pool(self, pool: Pool) -> None: ...

    def map_ground(self, ground: Ground) -> None: ...

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Any: ...

    def discard(self, slot: Slot) -> None: ...


class Link(Backing, Protocol):
    """The connection of a tier with the tier below: places for tiles there, and copies to and from them."""

    def read(self, residency: Residency, slot: Slot, after: StreamEvents) -> StreamEvent:
        """Enqueue the copy from the tile's place below into `slot`, after `after` is over and the place has been filled."""

    def write(self, residency: Residency, slot: Slot, waits: StreamEvents) -> StreamEvent:
        """Enqueue the copy from `slot`, which `waits` fill, to the tile's place below."""

    def moved_nbytes(self, residency: Residency) -> int:
        """Return how many bytes a copy of the tile moves."""

    def is_lost(self, residency: Residency) -> bool:
        """Return whether the copy below failed to arrive. Nothing may be in flight."""
