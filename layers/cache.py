"""The tiles of a KV cache: for each page, layer and group of heads one tile, keys above values.

They are persistent tiles like weights: a program that visits them names them, they are counted in its demand, and leave the
device and RAM like all others. Which page is whose is pages.py; what is done with one is asynctile/ops/attention_page.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from asynctile.layers.pages import page_positions
from asynctile.layers.parameters import Parameters
from asynctile.storage.demand import align
from asynctile.storage.tile import Tile


class KVCache:
    """Tiles by layer and group of heads, made when they are first asked for; they have no bytes until somebody stores some.

    positions: of a page. page_nbytes: of one page's tiles, in all layers.
    """

    def __init__(self, parameters: Parameters) -> None:
        tiling, config = parameters.tiling, parameters.config
        self.positions = page_positions(config, tiling.tile)
        self._dtype = parameters.compute_dtype
        self._widths = [tiling["heads"].size(group) for group in range(len(tiling["heads"]))]
        layers = [f"h.{layer}.attn" for layer in range(config.n_layer)]
        self._tiles: dict[tuple[str, int], list[Tile]] = {
            (layer, group): [] for layer in layers for group in range(len(self._widths))
        }
        a_layer = sum(align(2 * self.positions * width * self._dtype.itemsize) for width in self._widths)
        self.page_nbytes = config.n_layer * a_layer

    def pages(self, count: int) -> Mapping[tuple[str, int], Sequence[Tile]]:
        """The tiles (2 positions, g hs) of pages 0 .. count - 1, by layer, such as "h.0.attn", and group of heads."""
        for (layer, group), tiles in self._tiles.items():
            shape = 2 * self.positions, self._widths[group]
            names = (f"{layer}.kv[{group}].page {page}" for page in range(len(tiles), count))
            tiles += [Tile(name, shape, self._dtype, persistent=True) for name in names]
        return {key: tiles[:count] for key, tiles in self._tiles.items()}

    def tiles(self, start: int, stop: int) -> Iterator[Tile]:
        """Those of pages start .. stop - 1."""
        for tiles in self.pages(stop).values():
            yield from tiles[start:]
