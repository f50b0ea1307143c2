"""The cut of a model into tiles: `Tiling` of its axes, `default_tile` for the edge.

Everything here is a pure function of the configuration, `tile` and the grain of a kind of device, never of a budget, because
the bits of results depend on it. split.py cuts one axis, rows.py the rows of a batch. config.py says which axes cut which
tensor.
"""

from __future__ import annotations

from asynctile.layers.config import MODEL, Config
from asynctile.layers.layout import tile_count
from asynctile.layers.rows import Rows, count_rows
from asynctile.layers.split import Split
from asynctile.program.grain import FINE, Grain
from asynctile.storage.input import shown

__all__ = ["Split", "Tiling", "check_tile", "default_tile", "floor_estimate"]

#: The floor is about 8 float32 tiles of activations and some small ones. 12 is a safe upper estimate.
FLOOR_TILES = 12
#: The floor with the default tile is at most this share of the states, or the grain's own bound if that is larger.
FLOOR_SHARE = 0.10
#: Each weight tile with its moments takes 1.3 KB of bookkeeping and about a dozen operations a step. A model of 175 billion
#: parameters has 670,000 tiles of edge 512. More tiles are a typing mistake or an attempt to fill memory.
MOST_TILES = 1_000_000
#: The most operations of a forward pass. A step has three or four times as many. Planning takes about 4 KB and 0.2 ms for each
#: operation, and for the largest step 17 GB and a quarter of an hour. The deepest published model with default tiles, gpt2-xl
#: on
#: 12 x 1024 tokens, has 260,000.
MOST_OPERATIONS = 1 << 20
#: The largest edge. One above every axis means whole tensors. Row tiles four times as tall still fit into a batch (rows.py).
MOST_EDGE = 1 << 24


class Tiling:
    """The axes of a model by name, cut by one edge, and batches cut into row tiles of `grain.tall` times as many rows.

    model: the columns of the residual stream. ValueError for a model of more than MOST_TILES tiles, before any axis is cut.
    """

    def __init__(self, config: Config, tile: int | None = None, grain: Grain = FINE) -> None:
        self.config = config
        self.tile = default_tile(config, grain) if tile is None else check_tile(tile)
        #: the number of weight tiles
        self.count = check_count(config, self.tile, grain.pitch)
        self.grain = grain
        self._splits = {name: axis.split(self.tile, grain.pitch) for name, axis in config.axes.items()}
        self.model = self[MODEL]
        #: the last request and its result, because a training asks for the same rows at every step
        self._rows: tuple[tuple[int, int, int, int, bool], Rows] | None = None

    def __getitem__(self, axis: str) -> Split:
        """Return the cut of the axis that has this name in the configuration."""
        return self._splits[axis]

    def rows(self, batch: int, length: int, micro_batches: int = 1, replicas: int = 1, packed: bool = False) -> Rows:
        """Return the row tiles of a batch of `batch` sequences of `length` tokens; packed: as for `Rows`.

        ValueError if they do not fit the model, or if they would make more than MOST_OPERATIONS, before any is made.
        """
        if not 1 <= length <= self.config.block_size:
            raise ValueError(f"sequences of {length} tokens do not fit this model: expected 1 to block_size "
                             f"{self.config.block_size}; shorten the sequences or choose a larger block_size")
        asked, last = (batch, length, micro_batches, replicas, packed), self._rows
        if last is None or last[0] != asked:
            self._check_operations(batch, length, micro_batches, replicas)
            last = self._rows = asked, Rows(batch, length, micro_batches, self.row_tokens, replicas, packed=packed)
        return last[1]

    def _check_operations(self, batch: int, length: int, micro_batches: int, replicas: int) -> None:
        """Refuse too many operations, counted by arithmetic.

        Each weight tile meets each row tile. In each layer, each group of heads meets each pair of row tiles.
        """
        rows, pairs = count_rows(batch, length, micro_batches, self.row_tokens, replicas)
        found = self.count * rows + self.config.n_layer * len(self["heads"]) * pairs
        if found > MOST_OPERATIONS:
            raise ValueError(f"a batch of {batch:,} sequences of {length:,} tokens ({rows:,} row tiles) through {self.count:,} "
                             f"weight tiles of edge {self.tile} makes {found:,} operations forward, expected at most "
                             f"{MOST_OPERATIONS:,}; choose a larger tile or a smaller batch")

    @property
    def row_tokens(self) -> int:
        """The most rows, which are tokens, of a row tile."""
        return self.grain.tall * self.tile


def check_tile(tile: int) -> int:
    """Return the edge of a tile if it is valid; otherwise raise ValueError."""
    if isinstance(tile, bool) or not isinstance(tile, int) or not 1 <= tile <= MOST_EDGE:
        raise ValueError(f"tile is {shown(tile)}, expected a whole number of at least 1 and at most {MOST_EDGE}, or None to "
                         "let it be chosen")
    return tile


def check_count(config: Config, tile: int, pitch: int = 1) -> int:
    """Return the number of weight tiles, by arithmetic; ValueError if there are more than MOST_TILES."""
    count = tile_count(config, tile, pitch)
    if count > MOST_TILES:
        raise ValueError(f"a model of {config.parameter_count:,} parameters ({config.summary}) is {count:,} tiles of edge "
                         f"{tile}, expected at most {MOST_TILES:,}; choose a larger tile or a smaller model")
    return count


def default_tile(config: Config, grain: Grain = FINE) -> int:
    """Return the largest edge of the grain's ladder whose floor stays within its bound; otherwise the smallest edge.

    The precision does not count: the residual stream, which sets the size of slots, is float32 in every precision.
    """
    bound = max(FLOOR_SHARE * config.states_nbytes, grain.floor_nbytes)
    fitting = (edge for edge in grain.ladder if floor_estimate(config, edge, grain.tall) <= bound)
    return next(fitting, grain.ladder[-1])


def floor_estimate(config: Config, tile: int, tall: int = 1) -> int:
    """Return an upper estimate of the bytes that any operation needs at once: FLOOR_TILES tiles of the largest area."""
    # A column tile of attention holds at least one whole head.
    widest = max(axis.multiple for axis in config.axes.values())
    return FLOOR_TILES * tall * tile * max(tile, widest) * 4
