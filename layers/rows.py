"""How a batch is cut into row tiles: `Rows` of `Row`.

A row tile holds several whole sequences, or a piece of one. Which columns go with it is tiling.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from asynctile.layers.split import Split

#: Tokens of a step. Published models were trained with a few million; as many as this are 1 GiB of numbers before any work.
MOST_TOKENS = 1 << 27


@dataclass(frozen=True, slots=True)
class Row:
    """A row tile: tokens start .. stop - 1 of `seqs` sequences from `sequence` on.

    index: its number in the batch. keys: numbers of the row tiles whose keys its queries meet, up to itself; queries:
    of those whose queries its keys meet, from itself on. seqs > 1 only if the tile holds whole sequences.
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
        """Whether its queries meet its own keys only."""
        return len(self.keys) == len(self.queries) == 1

    @property
    def size(self) -> int:
        """Rows, that is tokens."""
        return self.seqs * (self.stop - self.start)


class Rows:
    """All row tiles of a batch, by micro-batch, sequence and start.

    Refuses a batch that micro-batches do not divide (ValueError).
    """

    def __init__(self, batch: int, length: int, micro_batches: int, tile: int) -> None:
        for name, value in (("batch size", batch), ("sequence length", length), ("micro_batches", micro_batches)):
            if value < 1:
                raise ValueError(f"{name} is {value}, expected a whole number of at least 1")
        if batch % micro_batches:
            raise ValueError(f"a batch of {batch} sequences is not divisible by micro_batches {micro_batches}; "
                             "change either so that it is")
        if batch * length > MOST_TOKENS:
            raise ValueError(f"a batch of {batch:,} sequences of {length:,} tokens is {batch * length:,} tokens, expected at "
                             f"most {MOST_TOKENS:,}; choose a smaller batch or shorter sequences")
        self.batch = batch
        self.length = length
        self.micro_batches = micro_batches
        self.tiles: list[Row] = []
        self._by_micro_batch: list[list[Row]] = []
        share = batch // micro_batches
        for micro_batch in range(micro_batches):
            begin = len(self.tiles)
            first = micro_batch * share
            if length > tile:
                for sequence in range(first, first + share):
                    self._cut(micro_batch, sequence, tile)
            else:
                self._group(micro_batch, first, share, tile // length)
            self._by_micro_batch.append(self.tiles[begin:])

    def __len__(self) -> int:
        return len(self.tiles)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.tiles)

    def __getitem__(self, index: int) -> Row:
        return self.tiles[index]

    def of(self, micro_batch: int) -> list[Row]:
        """The row tiles of one micro-batch."""
        return self._by_micro_batch[micro_batch]

    def part(self, row: Row) -> slice:
        """Where a row tile stands among the batch x length tokens in reading order."""
        begin = row.sequence * self.length + row.start
        return slice(begin, begin + row.size)

    def strips(self, tokens: int) -> list[list[Row]]:
        """Consecutive row tiles in groups of at least `tokens` tokens; the last may be smaller."""
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
        """One sequence in nearly equal pieces."""
        begin = len(self.tiles)
        split = Split.even(self.length, tile)
        for index, (start, stop) in enumerate(split, begin):
            keys, queries = range(begin, index + 1), range(index, begin + len(split))
            self.tiles.append(Row(index, micro_batch, sequence, 1, start, stop, keys, queries))

    def _group(self, micro_batch: int, first: int, count: int, most: int) -> None:
        """Whole sequences, at most `most` in a tile, in nearly equal groups."""
        groups = -(-count // most)
        for group in range(groups):
            begin, end = first + group * count // groups, first + (group + 1) * count // groups
            index = len(self.tiles)
            alone = range(index, index + 1)
            self.tiles.append(Row(index, micro_batch, begin, end - begin, 0, self.length, alone, alone))
