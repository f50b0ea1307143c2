"""The KV caches of one server, one on each device, under one limit of pages: `Caches` of `DeviceCache`. Pure.

A sequence stays on one device, with all its pages. Which one it is changes no bit of its text. Each device rounds its pages up
to its even part of the limit at most, so that rounding leaves room for the others. cache.py holds the tiles of a cache,
pages.py the numbers of its pages. serving.py fills them and computes texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from asynctile.layers.cache import KVCache
from asynctile.layers.pages import Pages
from asynctile.layers.parameters import Parameters
from asynctile.storage.tile import Tile


class DeviceCache:
    """The cache on one device. pages: which are taken. filled: the pages below this number have bytes."""

    def __init__(self, parameters: Parameters, pages: Pages) -> None:
        self.tiles = KVCache(parameters)
        self.pages = pages
        self.filled = 0

    @property
    def held(self) -> Iterator[Tile]:
        """The tiles that have bytes."""
        return self.tiles.tiles(0, self.filled)


class Caches(list[DeviceCache]):
    """The caches on `devices` devices, in their order. most: how many pages may have bytes, on all devices together.

    positions: how many positions a page holds. page_nbytes: the bytes of one page.
    """

    def __init__(self, parameters: Parameters, devices: int, most: int) -> None:
        self.most = most
        super().__init__(DeviceCache(parameters, Pages(most, most // devices)) for _ in range(devices))
        self.positions, self.page_nbytes = self[0].tiles.positions, self[0].tiles.page_nbytes

    def device_for(self, count: int, taken: Iterable[int]) -> int | None:
        """Return the device for a text of `count` pages: of those that have room, the first with the fewest texts.

        None if no device has room. taken: the devices of the texts that have pages now.
        """
        self._divide()
        texts = Counter(taken)
        by_texts = sorted(range(len(self)), key=lambda device: texts[device])
        return next((device for device in by_texts if self[device].pages.has(count)), None)

    def idle(self) -> list[DeviceCache]:
        """Return the caches that have bytes and no page that is taken."""
        return [cache for cache in self if cache.filled and not cache.pages.taken]

    def tiles(self, pages: Sequence[int]) -> Iterator[Tile]:
        """Yield the tiles of the first pages of each device. pages: how many, by device."""
        return chain.from_iterable(cache.tiles.tiles(0, count) for cache, count in zip(self, pages, strict=True))

    def _divide(self) -> None:
        """Let each device have all pages that have no bytes on the others."""
        filled = sum(cache.filled for cache in self)
        for cache in self:
            cache.pages.most = self.most - (filled - cache.filled)
