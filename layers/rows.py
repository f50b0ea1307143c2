"""The cut of a batch into row tiles, `Rows` of `Row`, and their passes through a block.

A row tile holds several whole sequences, or a piece of one. tiling.py cuts columns. The cut of a batch, and with it replicas
and micro_batches, decides the bits of results. The passes do not: every sum over the rows of a replica goes from the first to
the last, and a fixed tree adds the sums of the replicas (partials.py).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Self

from asynctile.layers.split import Split, units
from asynctile.storage.input import shown

#: The most tokens of a step: their numbers alone take 1 GiB. Published models were trained with a few million tokens a step.
MOST_TOKENS = 1 << 27


@dataclass(frozen=True, slots=True)
class Row:
    """A row tile: tokens start .. stop - 1 of `seqs` sequences from `sequence` on.

    index, micro_batch: numbers in the batch, through all replicas. keys: the numbers of the row tiles whose keys its queries
    meet, up to itself. queries: those of the row tiles whose queries its keys meet, from itself on. seqs > 1 only if the tile
    holds whole sequences.
    """

    index: int
    micro_batch: int
    sequence: int
    seqs: int
    start: int
    stop: int
    keys: range
    queries: range

    @property
    def whole(self) -> bool:
        """Whether the queries of this row tile meet only its own keys."""
        return len(self.keys) == len(self.queries) == 1

    @property
    def size(self) -> int:
        """Number of rows, which are tokens."""
        return self.seqs * (self.stop - self.start)


def check_replicas(replicas: int) -> int:
    """Return `replicas` if it is a power of two; otherwise raise ValueError."""
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1 or replicas & (replicas - 1):
        raise ValueError(f"replicas is {shown(replicas)}, expected a power of two: 1, 2, 4, 8, ...")
    return replicas


def count_rows(batch: int, length: int, micro_batches: int, tile: int, replicas: int = 1) -> tuple[int, int]:
    """Return how many row tiles a batch is cut into, and how many pairs of query and key tiles meet, by arithmetic.

    ValueError for a batch that `Rows` refuses.
    """
    _check_batch(batch, length, micro_batches, replicas)
    if length > tile:
        pieces = Split.count(length, tile)
        return batch * pieces, batch * pieces * (pieces + 1) // 2
    parts = replicas * micro_batches
    count = parts * units(batch // parts, tile // length)
    return count, count


def _check_batch(batch: int, length: int, micro_batches: int, replicas: int) -> None:
    for name, value in (("batch size", batch), ("sequence length", length), ("micro_batches", micro_batches)):
        if value < 1:
            raise ValueError(f"{name} is {value}, expected a whole number of at least 1")
    check_replicas(replicas)
    if batch % (parts := replicas * micro_batches):
        times = f"replicas {replicas} x " if replicas > 1 else ""
        raise ValueError(f"a batch of {batch} sequences is not divisible by {times}micro_batches {micro_batches}; "
                         f"choose a multiple of {parts}, or fewer parts")
    if batch * length > MOST_TOKENS:
        raise ValueError(f"a batch of {batch:,} sequences of {length:,} tokens is {batch * length:,} tokens, expected at "
                         f"most {MOST_TOKENS:,}; choose a smaller batch or shorter sequences")


class Rows:
    """All row tiles of a batch, by replica, micro-batch, sequence and start. Every replica has equally many.

    passes: groups of row tiles, each of one replica. One group goes through a block before the next one does. At first, each
    micro-batch is one pass; `in_passes` gives others. packed: whether a sequence may hold several examples, which are kept
    apart by positions that are an input. ValueError for a batch that is not divisible by replicas x micro_batches, or is too
    large.
    """

    def __init__(
        self, batch: int, length: int, micro_batches: int, tile: int, replicas: int = 1, *, packed: bool = False
    ) -> None:
        _check_batch(batch, length, micro_batches, replicas)
        self.batch = batch
        self.length = length
        self.micro_batches = micro_batches
        self.replicas = replicas
        self.packed = packed
        self.tiles: list[Row] = []
        self.passes: list[list[Row]] = []
        parts = replicas * micro_batches
        share = batch // parts
        for micro_batch in range(parts):
            begin = len(self.tiles)
            first = micro_batch * share
            if length > tile:
                for sequence in range(first, first + share):
                    self._cut(micro_batch, sequence, tile)
            else:
                self._group(micro_batch, first, share, tile // length)
            self.passes.append(self.tiles[begin:])

    @property
    def shape(self) -> tuple[int, int, int, int, bool]:
        """The arguments of `Tiling.rows` that give these row tiles."""
        return self.batch, self.length, self.micro_batches, self.replicas, self.packed

    def __len__(self) -> int:
        return len(self.tiles)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.tiles)

    def __getitem__(self, index: int) -> Row:
        return self.tiles[index]

    @property
    def by_replica(self) -> list[list[Row]]:
        """The row tiles of each replica."""
        count = self._of_replica
        return [self.tiles[begin : begin + count] for begin in range(0, len(self.tiles), count)]

    def on_one(self, devices: int, tile: int) -> Rows:
        """Return the row tiles of the busiest of so many devices that share the replicas; a power of two of these.

        tile: as given to `Rows`.
        """
        replicas = 1 << (-(-self.replicas // devices) - 1).bit_length()
        if replicas == self.replicas:
            return self
        return Rows(self.batch * replicas // self.replicas, self.length, self.micro_batches, tile, replicas, packed=self.packed)

    def ends_replica(self, row: Row) -> bool:
        """Return whether `row` is the last row tile of its replica."""
        return (row.index + 1) % self._of_replica == 0

    @property
    def _of_replica(self) -> int:
        return len(self.tiles) // self.replicas

    @property
    def most_passes(self) -> int:
        """The most passes of a replica. Row tiles of one sequence meet in attention, so they stay together."""
        return len(self.groups) // self.replicas

    def in_passes(self, count: int) -> Self:
        """Return the same row tiles, each replica in `count` passes of nearly equal numbers of sequences.

        ValueError if a replica has too few.
        """
        passes = self.replicas * count
        if passes == len(self.passes):
            return self
        if not 1 <= count <= self.most_passes:
            raise ValueError(f"a replica cannot be split into {count} passes, expected 1 to {self.most_passes}")
        groups = self.groups
        other = copy.copy(self)
        # Every replica has equally many groups, so these cuts include the ends of all replicas.
        cuts = [number * len(groups) // passes for number in range(passes + 1)]
        other.passes = [list(chain.from_iterable(groups[begin:end])) for begin, end in pairwise(cuts)]
        return other

    @property
    def groups(self) -> list[list[Row]]:
        """The row tiles in groups that attend only within the group: one cut sequence, or one tile of whole ones."""
        return [self.tiles[row.index : row.queries.stop] for row in self.tiles if row.index == row.keys.start]

    def part(self, row: Row) -> slice:
        """Return the place of a row tile among the batch x length tokens, in reading order."""
        begin = row.sequence * self.length + row.start
        return slice(begin, begin + row.size)

    def strips(self, tokens: int) -> list[list[Row]]:
        """Return consecutive row tiles in groups of at least `tokens` tokens; the last group may be smaller."""
        strips: list[list[Row]] = []
        held = tokens
        for row in self.tiles:
            if held >= tokens:
                strips.append([])
                held = 0
            strips[-1].append(row)
            held += row.size
        return strips

    def _cut(self, micro_batch: int, sequence: int, tile: int) -> None:
        """Cut one sequence into nearly equal pieces."""
        begin = len(self.tiles)
        split = Split.even(self.length, tile)
        for index, (start, stop) in enumerate(split, begin):
            keys, queries = range(begin, index + 1), range(index, begin + len(split))
            self.tiles.append(Row(index, micro_batch, sequence, 1, start, stop, keys, queries))

    def _group(self, micro_batch: int, first: int, count: int, most: int) -> None:
        """Group whole sequences, at most `most` in a tile, as evenly as possible."""
        groups = units(count, most)
        for group in range(groups):
            begin, end = first + group * count // groups, first + (group + 1) * count // groups
            index = len(self.tiles)
            alone = range(index, index + 1)
            self.tiles.append(Row(index, micro_batch, begin, end - begin, 0, self.length, alone, alone))
