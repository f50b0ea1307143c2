"""The cut of a batch into row tiles, `Rows` of `Row`, and their passes through a block.

A row tile holds several whole sequences, or a piece of one. tiling.py cuts columns. The cut of a batch, and micro_batches with
it, decides the bits of results. The passes do not: every sum over rows goes from the first to the last.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Self

from asynctile.layers.split import Split, units

#: The most tokens of a step: their numbers alone take 1 GiB. Published models were trained with a few million tokens a step.
MOST_TOKENS = 1 << 27


@dataclass(frozen=True, slots=True)
class Row:
    """A row tile: tokens start .. stop - 1 of `seqs` sequences from `sequence` on.

    index: its number in the batch. keys: the numbers of the row tiles whose keys its queries meet, up to itself. queries: those
    of the row tiles whose queries its keys meet, from itself on. seqs > 1 only if the tile holds whole sequences.
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


def count_rows(batch: int, length: int, micro_batches: int, tile: int) -> tuple[int, int]:
    """Return how many row tiles a batch is cut into, and how many pairs of query and key tiles meet, by arithmetic.

    ValueError for a batch that `Rows` refuses.
    """
    _check_batch(batch, length, micro_batches)
    if length > tile:
        pieces = Split.count(length, tile)
        return batch * pieces, batch * pieces * (pieces + 1) // 2
    count = micro_batches * units(batch // micro_batches, tile // length)
    return count, count


def _check_batch(batch: int, length: int, micro_batches: int) -> None:
    for name, value in (("batch size", batch), ("sequence length", length), ("micro_batches", micro_batches)):
        if value < 1:
            raise ValueError(f"{name} is {value}, expected a whole number of at least 1")
    if batch % micro_batches:
        raise ValueError(f"a batch of {batch} sequences is not divisible by micro_batches {micro_batches}; "
                         "choose a micro_batches that divides it")
    if batch * length > MOST_TOKENS:
        raise ValueError(f"a batch of {batch:,} sequences of {length:,} tokens is {batch * length:,} tokens, expected at "
                         f"most {MOST_TOKENS:,}; choose a smaller batch or shorter sequences")


class Rows:
    """All row tiles of a batch, by micro-batch, sequence and start.

    passes: groups of row tiles. One group goes through a block before the next one does. At first, each micro-batch is one
    pass; `in_passes` gives others. ValueError for a batch that is not divisible by micro_batches, or is too large.
    """

    def __init__(self, batch: int, length: int, micro_batches: int, tile: int) -> None:
        _check_batch(batch, length, micro_batches)
        self.batch = batch
        self.length = length
        self.micro_batches = micro_batches
        self.tiles: list[Row] = []
        self.passes: list[list[Row]] = []
        share = batch // micro_batches
        for micro_batch in range(micro_batches):
            begin = len(self.tiles)
            first = micro_batch * share
            if length > tile:
                for sequence in range(first, first + share):
                    self._cut(micro_batch, sequence, tile)
            else:
                self._group(micro_batch, first, share, tile // length)
            self.passes.append(self.tiles[begin:])

    def __len__(self) -> int:
        return len(self.tiles)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.tiles)

    def __getitem__(self, index: int) -> Row:
        return self.tiles[index]

    @property
    def most_passes(self) -> int:
        """The most passes of this batch. Row tiles of one sequence meet in attention, so they stay together."""
        return len(self._sequences())

    def in_passes(self, count: int) -> Self:
        """Return the same row tiles in `count` passes of nearly equal numbers of sequences; ValueError if there are too few."""
        if count == len(self.passes):
            return self
        sequences = self._sequences()
        if not 1 <= count <= len(sequences):
            raise ValueError(f"the batch cannot be split into {count} passes, expected 1 to {len(sequences)}")
        other = copy.copy(self)
        cuts = [number * len(sequences) // count for number in range(count + 1)]
        other.passes = [list(chain.from_iterable(sequences[begin:end])) for begin, end in pairwise(cuts)]
        return other

    def _sequences(self) -> list[list[Row]]:
        """Return groups of row tiles that attend only within the group: one cut sequence, or one tile of whole ones."""
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
