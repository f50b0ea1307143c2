"""Random tile programs: `write_program` draws one.

Covers everything that a tile program may contain: updates in place, overwrites, temporaries that die, inputs and fetches, reads
after long gaps, one tile read by many and overwritten at once, tiles of two sizes, host operations among those of the device.
work.py runs a program and computes its results.

Each operation is computed when it is drawn, by the CPU's kernels on one array per tile, without tiers, streams or threads. So
magnitudes stay in a range where a wrong byte shows; a NaN would hide it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from asynctile.cli.stress.work import Workload, compute
from asynctile.layers import AdamW
from asynctile.ops import adamw, column_sums, copy, fill, gelu, gelu_and_backward, gemm, layernorm, layernorm_stats, sum_squares
from asynctile.program.operation import HOST, Operation
from asynctile.program.program import Program
from asynctile.storage.tile import Tile

__all__ = ["LEAST_OPERATIONS", "write_program"]

LEAST_OPERATIONS, _MOST_OPERATIONS = 200, 224
#: Rows and columns of the larger tiles. From 96 on, slots of whole pages come in two sizes too.
_EDGES = (16, 16, 24, 24, 32, 32, 48, 96)
#: Range of the number of persistent tiles.
_TILES = (14, 28)
#: Tiles with entries above this are not multiplied any more, or values would soon be infinite.
_LARGEST = 1e3
#: Number of recently used tiles that half of the operands come from; the others may have rested for long.
_RECENT = 6
_TEMPORARIES_ALIVE = 6
#: Shares of operations that run on the host.
_ON_HOST = (0.0, 0.0, 0.05, 0.3, 0.8)
#: Share of programs with fetches; the others are played when they run again.
_FETCHING = 0.4


def write_program(chance: random.Random, *, passing: bool = True) -> Workload:
    """Return a program of at least 200 operations.

    passing: with temporaries, inputs, fetches and operations on the host, as only a program has.
    """
    return _Writer(chance, passing).write(chance.randint(LEAST_OPERATIONS, _MOST_OPERATIONS))


class _Writer:
    """One program in the making. arrays: the current content of each readable tile."""

    def __init__(self, chance: random.Random, passing: bool) -> None:
        self.chance = chance
        self.passing = passing
        self.normal = np.random.default_rng(chance.getrandbits(64)).standard_normal
        self.edge = chance.choice(_EDGES)
        self.on_host = chance.choice(_ON_HOST) if passing else 0.0  # a single operation runs on the device, whatever it says
        self.fetching = int(chance.random() < _FETCHING)
        self.shape = (self.edge, self.edge)
        self.program = Program("random")
        self.arrays: dict[Tile, np.ndarray] = {}
        self.values: dict[Tile, np.ndarray] = {}
        self.inputs: dict[str, np.ndarray] = {}
        self.numbers: list[float] = []
        self.alive: list[Tile] = []
        self.recent: list[Tile] = []
        self.operations = 0
        count = chance.randint(*_TILES)
        self.whole = [self._stand(f"a[{index}]", self.shape) for index in range(count)]
        self.halves = [self._stand(f"h[{index}]", (self.edge, self.edge // 2)) for index in range(4)]
        self.rows = [self._stand(f"row[{index}]", (self.edge,)) for index in range(chance.randint(2, 4))]
        self.statistics = [self._stand(f"stats[{index}]", (self.edge, 2)) for index in range(2)]
        self.seconds = [self._stand(f"v[{index}]", self.shape, np.square) for index in range(3)]
        self.hyper = self._settings()

    def write(self, length: int) -> Workload:
        kinds: dict[Callable[[], None], int] = {
            self._product: 8, self._product_with_row: 2, self._product_of_halves: 2, self._half_product: 2,
            self._copy: 3, self._fill: 1, self._gelu: 2, self._bend: 2, self._sums: 2, self._normalise: 2, self._adamw: 2,
            self._norm: 1, self._fetch: self.fetching,
        }  # fmt: skip
        draws, weights = list(kinds), list(kinds.values())
        while self.operations < length:
            self.chance.choices(draws, weights)[0]()
        for tile in self.alive:  # an error in an unread temporary would not show
            self._do(copy(tile, self._over(self.whole)))
        return Workload(self.program.finish(), self.values, self.inputs)

    def _stand(self, name: str, shape: tuple[int, ...], change: Callable[[np.ndarray], np.ndarray] = np.asarray) -> Tile:
        """Return a persistent tile of random numbers, scaled so that a product of two tiles keeps their magnitude."""
        value = change(self.normal(shape, np.float32) / np.float32(np.sqrt(self.edge)))
        tile = Tile(name, shape, persistent=True)
        self.values[tile], self.arrays[tile] = value, value.copy()
        return tile

    def _settings(self) -> Tile:
        """Return the settings of AdamW: an input of the program, or a small persistent tile."""
        value = AdamW(lr=0.05).hyper(3)
        if self.passing:
            tile = self.program.input("hyper", value.shape, np.float32)
            self.inputs["hyper"] = value
        else:
            tile = Tile("hyper", value.shape, persistent=True)
            self.values[tile] = value
        self.arrays[tile] = value.copy()
        return tile

    def _do(self, operation: Operation) -> None:
        """Record an operation and compute it."""
        if self.chance.random() < self.on_host:
            operation = replace(operation, device=HOST)
        compute(operation, self.arrays, self.numbers)
        self.program.add(operation)
        self.operations += 1
        self.recent = [*operation.operands, *self.recent][:_RECENT]

    def _number(self, label: str) -> int:
        self.numbers.append(0.0)
        return self.program.number(label)

    def _read(self, shape: tuple[int, ...] | None = None) -> Tile:
        """Return a tile to read: a recent one, or any. An operation may read the same one twice."""
        wanted = shape or self.shape
        near = [tile for tile in self.recent if tile.shape == wanted and tile in self.arrays]
        if near and self.chance.random() < 0.5:
            return self.chance.choice(near)
        return self.chance.choice([tile for tile in self.arrays if tile.shape == wanted])

    def _over(self, tiles: list[Tile], *others: Tile) -> Tile:
        """Return a tile to change, not among `others`; half of the time one that was just read."""
        free = [tile for tile in tiles if tile not in others]
        near = [tile for tile in free if tile in self.recent]
        return self.chance.choice(near if near and self.chance.random() < 0.5 else free)

    def _target(self, *others: Tile) -> Tile:
        """Return where a result goes: over an existing tile, or into a new temporary, for which an old one may die."""
        if not self.passing or self.chance.random() < 0.6:
            return self._over(self.whole + self.alive, *others)
        if len(self.alive) == _TEMPORARIES_ALIVE:
            oldest = next(tile for tile in self.alive if tile not in others)
            self.alive.remove(oldest)
            del self.arrays[oldest]
        tile = self.program.tile(f"t[{len(self.program.temporaries)}]", self.shape)
        self.alive.append(tile)
        return tile

    def _is_small(self, *tiles: Tile) -> bool:
        return all(np.abs(self.arrays[tile]).max() < _LARGEST for tile in tiles)

    def _product(self) -> None:
        a = self._read()
        b = self._read()
        if not self._is_small(a, b):
            return self._normalise(a)
        ta, tb = self.chance.random() < 0.3, self.chance.random() < 0.3
        if self.chance.random() < 0.5:
            return self._do(gemm(a, b, self._over(self.whole + self.alive, a, b), ta=ta, tb=tb, accumulate=True))
        return self._do(gemm(a, b, self._target(a, b), ta=ta, tb=tb))

    def _product_with_row(self) -> None:
        a = self._read()
        b = self._read()
        if self._is_small(a, b):
            self._do(gemm(a, b, self._target(a, b), bias=self.chance.choice(self.rows)))

    def _product_of_halves(self) -> None:
        a, b = self._read(self.halves[0].shape), self._read(self.halves[0].shape)
        if self._is_small(a, b):
            self._do(gemm(a, b, self._target(a, b), tb=True))

    def _half_product(self) -> None:
        a, b = self._read(), self._read(self.halves[0].shape)
        if self._is_small(a, b):
            self._do(gemm(a, b, self._over(self.halves, b), accumulate=self.chance.random() < 0.5))

    def _copy(self) -> None:
        source = self._read()
        self._do(copy(source, self._target(source)))

    def _fill(self) -> None:
        self._do(fill(self._target(), self.chance.uniform(-1, 1)))

    def _gelu(self) -> None:
        source = self._read()
        self._do(gelu(source, self._target(source)))

    def _bend(self) -> None:
        source, sums, free = self._read(), self.chance.choice(self.rows), self.whole + self.alive
        grad = self._over(free, source)
        y = self._over(free, source, grad)
        self._do(gelu_and_backward(source, y, grad, sums, accumulate=self.chance.random() < 0.3))

    def _sums(self) -> None:
        self._do(column_sums(self._read(), self.chance.choice(self.rows), accumulate=self.chance.random() < 0.3))

    def _normalise(self, source: Tile | None = None) -> None:
        """Normalize a tile in two operations; the result has ordinary magnitude, whatever the source was."""
        x, statistics = source or self._read(), self.chance.choice(self.statistics)
        self._do(layernorm_stats(x, statistics, seen=0, last=True, eps=1e-5))
        gain, bias = self.chance.choice(self.rows), self.chance.choice(self.rows)
        if self._is_small(gain, bias):
            self._do(layernorm(x, statistics, gain, bias, self._over(self.whole, x)))
        else:
            self._do(fill(gain, 0.5))
            self._do(fill(bias, 0.25))

    def _adamw(self) -> None:
        gradient = self._read()
        if not self._is_small(gradient):
            return self._normalise(gradient)
        second = self._over(self.seconds, gradient)
        weight = self._over(self.whole, gradient, second)
        first = self._over(self.whole, gradient, second, weight)
        label = self._number("norm")
        return self._do(adamw(weight, gradient, first, second, self.hyper, decay=self.chance.random() < 0.5, number=label))

    def _norm(self) -> None:
        self._do(sum_squares(self._read(), number=self._number("squares")))

    def _fetch(self) -> None:
        """Fetch a copy for the host, in the middle of the program."""
        if self.passing:
            tile = self._read()
            self.program.fetch(tile, f"{tile.name} at {len(self.program)}", (slice(None), slice(None)))
