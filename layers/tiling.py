"""How a model is cut: `Tiling` of its axes, `default_tile` for the edge.

Everything here is a pure function of the configuration, `tile` and the grain of a kind of device, never of a budget: the
bits of results depend on it.
One axis is split.py, the rows of a batch rows.py; which tensor is cut by which axis is config.py.
"""

from __future__ import annotations

from asynctile.layers.config import MODEL, Config
from asynctile.layers.layout import tile_count
from asynctile.layers.rows import Rows, count_rows
from asynctile.layers.split import Split
from asynctile.program.grain import FINE, Grain
from asynctile.storage.input import shown

__all__ = ["Split", "Tiling", "check_tile", "default_tile", "floor_estimate"]

#: The floor is about 8 float32 tiles of activations and some small ones; 12 is on the safe side.
FLOOR_TILES = 12
#: The floor with the default tile is at most this share of the states, or what the grain allows if that is more.
FLOOR_SHARE = 0.10
#: Each weight tile and its moments take 1.3 KB to keep account of, and some dozen operations a step. A model of 175 billion
#: parameters is 670,000 of edge 512; what is beyond was typed by mistake or made to fill memory.
MOST_TILES = 1_000_000
#: Operations of a forward pass; a step has three or four times as many. Each takes some 4 KB and 0.2 ms to plan: that step
#: 17 GB and a quarter of an hour. Of published models with default tiles the deepest has 260,000, gpt2-xl of 12 x 1024 tokens.
MOST_OPERATIONS = 1 << 20
#: An edge above every axis means whole tensors. So many rows, four times as tall, are still within a batch (rows.py).
MOST_EDGE = 1 << 24


class Tiling:
    """The axes of a model by name, cut by one edge, and batches into row tiles of `tall` times as many rows.

    ValueError for a model of more than MOST_TILES tiles, before any axis is cut.

    model: the columns of the residual stream.
    """

    def __init__(self, config: Config, tile: int | None = None, grain: Grain = FINE) -> None:
        self.config = config
        self.tile = default_tile(config, grain) if tile is None else check_tile(tile)
        #: weight tiles in all
        self.count = check_count(config, self.tile, grain.pitch)
        self.tall = grain.tall
        self._splits = {name: axis.split(self.tile, grain.pitch) for name, axis in config.axes.items()}
        self.model = self[MODEL]
        #: those asked for last, with what was asked: a training asks for the same at every step
        self._rows: tuple[tuple[int, int, int], Rows] | None = None

    def __getitem__(self, axis: str) -> Split:
        """The cut of the axis that the configuration calls so."""
        return self._splits[axis]

    def rows(self, batch: int, length: int, micro_batches: int = 1) -> Rows:
        """Row tiles of a batch of `batch` sequences of `length` tokens; ValueError if they do not fit the model, or make more
        than MOST_OPERATIONS, before any is made.
        """
        if not 1 <= length <= self.config.block_size:
            raise ValueError(f"sequences of {length} tokens do not fit this model: expected 1 to block_size "
                             f"{self.config.block_size}; shorten them or choose a larger block_size")
        asked, last = (batch, length, micro_batches), self._rows
        if last is None or last[0] != asked:
            self._check_operations(*asked)
            last = self._rows = asked, Rows(batch, length, micro_batches, self.row_tokens)
        return last[1]

    def _check_operations(self, batch: int, length: int, micro_batches: int) -> None:
        """By arithmetic: each weight tile meets each row tile, and in each layer each group of heads each pair of these."""
        rows, pairs = count_rows(batch, length, micro_batches, self.row_tokens)
        found = self.count * rows + self.config.n_layer * len(self["heads"]) * pairs
        if found > MOST_OPERATIONS:
            raise ValueError(f"a batch of {batch:,} sequences of {length:,} tokens ({rows:,} row tiles) through {self.count:,} "
                             f"weight tiles of edge {self.tile} makes {found:,} operations forward, expected at most "
                             f"{MOST_OPERATIONS:,}; choose a larger tile or a smaller batch")

    @property
    def row_tokens(self) -> int:
        """The most rows, that is tokens, of a row tile."""
        return self.tall * self.tile


def check_tile(tile: int) -> int:
    """The edge if it is one, else ValueError."""
    if isinstance(tile, bool) or not isinstance(tile, int) or not 1 <= tile <= MOST_EDGE:
        raise ValueError(f"tile is {shown(tile)}, expected a whole number of at least 1 and at most {MOST_EDGE}, or None to "
                         "let it be chosen")
    return tile


def check_count(config: Config, tile: int, pitch: int = 1) -> int:
    """How many weight tiles that makes, by arithmetic; ValueError if nobody could keep account of so many."""
    count = tile_count(config, tile, pitch)
    if count > MOST_TILES:
        raise ValueError(f"a model of {config.parameter_count:,} parameters ({config.summary}) is {count:,} tiles of edge "
                         f"{tile}, expected at most {MOST_TILES:,}; choose a larger tile or a smaller model")
    return count


def default_tile(config: Config, grain: Grain = FINE) -> int:
    """The largest edge of the grain's ladder whose floor stays within its bound; the smallest one if none does.

    The precision does not count: the residual stream, which sets the size of slots, is float32 in each.
    """
    bound = max(FLOOR_SHARE * config.states_nbytes, grain.floor_nbytes)
    fitting = (edge for edge in grain.ladder if floor_estimate(config, edge, grain.tall) <= bound)
    return next(fitting, grain.ladder[-1])


def floor_estimate(config: Config, tile: int, tall: int = 1) -> int:
    """Bytes that any operation needs at once, from above: FLOOR_TILES tiles of the largest area."""
    # A column tile of attention holds at least one whole head.
    widest = max(axis.multiple for axis in config.axes.values())
    return FLOOR_TILES * tall * tile * max(tile, widest) * 4
