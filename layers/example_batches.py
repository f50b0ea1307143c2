"""Batches of examples: several short examples in a row, kept apart, the loss on answers alone.

Covers `ExampleBatches`, `ExampleValidation` and `one_a_row`. data.py makes batches of texts, examples.py keeps examples,
packing.py decides which examples share a row.

An example in a row has its tokens but the last. Its targets are the next tokens where these belong to an answer, otherwise
IGNORED. Its positions begin at 0, and attention stays within it, so its loss is the one that it has alone. Behind the last
example of a row there is padding: ignored as a target, and each token of it an example of its own, seen by no other token.

The way not taken: rows of one example each, padded to one of a few lengths. Padding costs time, and each length is one more
program to plan (bench/bench_packing.py). `Chats` alone makes such rows, so that its callers choose how many a batch has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.data import Batch, Resumable, check_limit, check_sizes
from asynctile.layers.examples import Example, Examples
from asynctile.layers.packing import PackedRows, fitting, row_lengths
from asynctile.layers.shuffle import shuffled
from asynctile.ops.cross_entropy import IGNORED

__all__ = ["ExampleBatches", "ExampleValidation", "one_a_row"]

#: The id of padding. Any would do: nothing learns from it.
_PADDING = 0


class ExampleBatches(Resumable):
    """Batches of (tokens, targets, positions) from rows of examples, in an order by chance, another one in each pass over them.

    The rows are the same in each pass. A pass gives each row once, in batches of nearly equally many; a row that a batch lacks
    is ignored. T is `seq_len`, or less if there are few examples (`fitting`). ValueError if there are fewer examples than a
    batch has rows, or if a number is out of range.
    """

    def __init__(self, examples: Examples, batch_size: int, seq_len: int, seed: int) -> None:
        super().__init__(batch_size, seq_len, seed)
        if len(examples) < batch_size:
            raise ValueError(f"the training part of the data has {len(examples):,} examples, fewer than the {batch_size:,} of "
                             "a step; give more examples or a smaller batch_size")
        self.examples = examples
        self._packing = _packing(examples.lengths(), self.batch_size, self.seq_len)

    @property
    def of_pass(self) -> int:
        """How many batches a pass over the examples has."""
        return math.ceil(len(self._packing) / self.batch_size)

    def batch(self, position: int) -> Batch:
        """Return batch number `position`, without moving to it."""
        number, place = divmod(position, self.of_pass)
        begin, end = (at * len(self._packing) // self.of_pass for at in (place, place + 1))
        rows = shuffled(np.arange(begin, end), len(self._packing), self.seed, (number, 0))
        packed = ([self.examples[index] for index in self._packing[row]] for row in rows.tolist())
        return _batch(packed, self.batch_size, self._packing.size)

    def _of_data(self) -> dict[str, int]:
        return {"examples": len(self.examples), "tokens": len(self.examples.ids), "rows": len(self._packing)}


class ExampleValidation:
    """Batches of (tokens, targets, positions) from rows of fixed examples, iterable any number of times.

    limit: about how many tokens the examples have together; None: all examples. They are spread evenly over the data. The
    unfilled rows of the last batch are ignored. ValueError if a number is out of range, or if no example has an answer within
    `seq_len` tokens.
    """

    def __init__(self, examples: Examples, batch_size: int, seq_len: int, limit: int | None = None) -> None:
        check_sizes(batch_size, seq_len)
        check_limit(limit)
        self._examples, self._batch_size, self._seq_len = examples, batch_size, seq_len
        there, tokens = len(examples), len(examples.ids)
        count = there if limit is None else max(1, min(there, math.ceil(limit * there / tokens)))
        chosen = [number * there // count for number in range(count)]
        if seq_len < examples.file.seq_len:
            chosen = [index for index in chosen if _targets(examples[index], seq_len)[1].max() != IGNORED]
        if not chosen:
            raise ValueError(f"no example of the {there:,} has an answer that begins within {seq_len} tokens; choose a larger "
                             "seq_len, or more validation tokens")
        self._chosen = chosen
        self._packing = _packing(examples.lengths()[chosen], batch_size, seq_len)

    def __len__(self) -> int:
        return math.ceil(len(self._packing) / self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for first in range(0, len(self._packing), self._batch_size):
            rows = range(first, min(first + self._batch_size, len(self._packing)))
            packed = ([self._examples[self._chosen[index]] for index in self._packing[row]] for row in rows)
            yield _batch(packed, self._batch_size, self._packing.size)

    def rows(self) -> Iterator[NDArray[np.int64]]:
        """Yield the targets of each example that count, (n,), in order."""
        for index in self._chosen:
            targets = _targets(self._examples[index], self._seq_len)[1]
            yield targets[targets != IGNORED]


def one_a_row(examples: Sequence[Example], seq_len: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (tokens, targets) with each example in a row of its own, in the shortest rows that take all of them."""
    longest = min(max(len(example.ids) for example in examples) - 1, seq_len)
    tokens, targets, _ = _batch(([example] for example in examples), len(examples), row_lengths(seq_len, longest)[-1])
    return tokens, targets


def _packing(lengths: NDArray[np.int64], batch_size: int, seq_len: int) -> PackedRows:
    """Return the rows of examples of so many tokens each, the last one included, which is a target alone.

    A damaged length takes some room; reading its example then tells.
    """
    return fitting(np.clip(lengths - 1, 1, seq_len), batch_size, seq_len)


def _targets(example: Example, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens and the targets of an example, (n,) each, n at most `most`."""
    ids = example.ids[: most + 1].astype(np.int64)
    return ids[:-1], np.where(example.answers[1 : most + 1], ids[1:], IGNORED)


def _batch(
    packed: Iterable[list[Example]], batch_size: int, size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of examples as arrays (B, T), with ignored rows up to `batch_size`."""
    tokens = np.full((batch_size, size), _PADDING, np.int64)
    targets = np.full((batch_size, size), IGNORED, np.int64)
    positions = np.zeros((batch_size, size), np.int64)
    for row, examples in enumerate(packed):
        end = 0
        for example in examples:
            ids, wanted = _targets(example, size)
            begin, end = end, end + len(ids)
            tokens[row, begin:end], targets[row, begin:end], positions[row, begin:end] = ids, wanted, np.arange(len(ids))
    return tokens, targets, positions
