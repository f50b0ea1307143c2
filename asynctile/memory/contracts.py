"""What a tier (asynctile/memory/tier.py) asks of those that it stands on: memory for its slots, and the link to what is below.

Devices and storage/host.py are such memory, host_link.py and spill_link.py such links.
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
    """Who gives an arena its bytes (a device, or storage/host.py)."""

    def map_pool(self, pool: Pool) -> None: ...

    def map_ground(self, ground: Ground) -> None: ...

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Any: ...

    def discard(self, slot: Slot) -> None: ...


class Link(Backing, Protocol):
    """What connects a tier with the one below: places for tiles there, and copies to and from them."""

    def read(self, residency: Residency, slot: Slot, after: StreamEvents) -> StreamEvent:
        """Enqueue the copy of the tile's place below into `slot`, when `after` is over and the place has been filled."""

    def write(self, residency: Residency, slot: Slot, waits: StreamEvents) -> StreamEvent:
        """Enqueue the copy of `slot`, which `waits` fill, into the tile's place below."""

    def moved_nbytes(self, residency: Residency) -> int:
        """What a copy of the tile moves, in bytes."""

    def is_lost(self, residency: Residency) -> bool:
        """Whether the copy below failed to arrive. Nothing may be in flight."""
