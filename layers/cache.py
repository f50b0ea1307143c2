"""The tiles of a KV cache: one tile for each page, layer and group of heads, keys above values.

They are persistent tiles like weights: a program that visits them names them, its demand counts them, and they can be evicted
from the device and from RAM. pages.py assigns pages to sequences. asynctile/ops/attention_page.py defines what is computed with
a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from asynctile.layers.pages import page_positions
from asynctile.layers.parameters import Parameters
from asynctile.storage.demand import align
from asynctile.storage.tile import Tile


class KVCache:
    """Cache tiles by layer and group of heads, created on first use. A tile has no bytes until some are stored in it.

    positions: how many positions a page holds. page_nbytes: the bytes of one page's tiles in all layers.
    """

    def __init__(self, parameters: Parameters) -> None:
        tiling, config = parameters.tiling, parameters.config
        self.positions = page_positions(config, tiling.tile)
        self._dtype = parameters.compute_dtype
        self._widths = [tiling["key_heads"].size(group) for group in range(len(tiling["key_heads"]))]
        self._tiles: dict[tuple[int, int], list[Tile]] = {
            (layer, group): [] for layer in range(config.n_layer) for group in range(len(self._widths))
        }
        a_layer = sum(align(2 * self.positions * width * self._dtype.itemsize) for width in self._widths)
        self.page_nbytes = config.n_layer * a_layer

    def pages(self, count: int) -> Mapping[tuple[int, int], Sequence[Tile]]:
        """Return the tiles (2 positions, c hs) of pages 0 .. count - 1, with c heads of keys in a group.

        Keys of the result: the number of the layer, and the group of heads.
        """
        for (layer, group), tiles in self._tiles.items():
            shape = 2 * self.positions, self._widths[group]
            names = (f"h.{layer}.attn.kv[{group}].page {page}" for page in range(len(tiles), count))
            tiles += [Tile(name, shape, self._dtype, persistent=True) for name in names]
        return {key: tiles[:count] for key, tiles in self._tiles.items()}

    def tiles(self, start: int, stop: int) -> Iterator[Tile]:
        """Yield the tiles of pages start .. stop - 1."""
        for tiles in self.pages(stop).values():
            yield from tiles[start:]
