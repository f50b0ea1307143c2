"""Batches of examples: one example a row, padded, the loss on answers alone.

Covers `ExampleBatches` and `ExampleValidation`. data.py makes batches of texts, examples.py keeps examples.

A row has the tokens of an example but its last. Its targets are the next tokens where these belong to an answer, otherwise
IGNORED. What follows a short example is padding: ignored as a target, and not seen by the tokens before it, because attention
looks back only. So padding costs time and changes nothing. To save that time, examples of like length share a batch, and a
batch has the least of a few lengths: each length is a program of its own, which is planned once.

The way not taken: several examples in one row. Attention would have to stop at their borders, which the verbs cannot do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.data import Batch, Resumable, check_limit, check_sizes
from asynctile.layers.examples import Example, Examples
from asynctile.layers.shuffle import shuffled
from asynctile.ops.cross_entropy import IGNORED

__all__ = ["ExampleBatches", "ExampleValidation"]

#: Lengths of a batch, in parts of the longest.
_PARTS = (8, 4, 2, 1)
#: How many batches are sorted by length at a time. The order of these groups, and of the batches in one, is by chance.
_GROUP = 32
#: The id of padding. Any would do: nothing learns from it.
_PADDING = 0


class ExampleBatches(Resumable):
    """Batches from examples in an order by chance, another one in each pass over them.

    A pass gives each example once, except for the rest that does not fill a batch. T is `seq_len`, a half, a quarter or an
    eighth of it, rounded up. ValueError if there are fewer examples than a batch has, or if a number is out of range.
    """

    def __init__(self, examples: Examples, batch_size: int, seq_len: int, seed: int) -> None:
        super().__init__(batch_size, seq_len, seed)
        if len(examples) < batch_size:
            raise ValueError(f"the training part of the data has {len(examples):,} examples, fewer than the {batch_size:,} of "
                             "a step; give more examples or a smaller batch_size")
        self.examples = examples
        self._of_pass = len(examples) // self.batch_size
        #: the group that was sorted last: its pass and number, and the examples of its batches (n, B)
        self._sorted: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def batch(self, position: int) -> Batch:
        """Return batch number `position`, without moving to it."""
        number, place = divmod(position, self._of_pass)
        group, place = divmod(place, _GROUP)
        return _padded([self.examples[index] for index in self._group(number, group)[place].tolist()], self.batch_size,
                       self.seq_len)  # fmt: skip

    def _group(self, number: int, group: int) -> NDArray[np.int64]:
        """Return the examples of the batches of a group of a pass, (n, B)."""
        if self._sorted is None or self._sorted[0] != (number, group):
            first = group * _GROUP
            count = min(_GROUP, self._of_pass - first)
            places = np.arange(first * self.batch_size, (first + count) * self.batch_size)
            found = shuffled(places, len(self.examples), self.seed, (number, 0))
            found = found[np.argsort(self.examples.lengths(found.tolist()), kind="stable")].reshape(count, self.batch_size)
            order = shuffled(np.arange(count), count, self.seed, (number, 1 + group))
            self._sorted = (number, group), found[order]
        return self._sorted[1]

    def _of_data(self) -> dict[str, int]:
        return {"examples": len(self.examples), "tokens": len(self.examples.ids)}


class ExampleValidation:
    """Batches of fixed examples, iterable any number of times.

    limit: about how many tokens the examples have together; None: all examples. They are spread evenly over the data, and
    batched by length. The unfilled rows of the last batch are ignored. ValueError if a number is out of range, or if no example
    has an answer within `seq_len` tokens.
    """

    def __init__(self, examples: Examples, batch_size: int, seq_len: int, limit: int | None = None) -> None:
        check_sizes(batch_size, seq_len)
        check_limit(limit)
        self._examples, self._batch_size, self._seq_len = examples, batch_size, seq_len
        there, tokens = len(examples), len(examples.ids)
        count = there if limit is None else max(1, min(there, math.ceil(limit * there / tokens)))
        chosen = [number * there // count for number in range(count)]
        if seq_len < examples.file.seq_len:
            chosen = [index for index in chosen if _row(examples[index], seq_len)[1].max() != IGNORED]
        if not chosen:
            raise ValueError(f"no example of the {there:,} has an answer that begins within {seq_len} tokens; choose a larger "
                             "seq_len, or more validation tokens")
        order = np.argsort(examples.lengths(chosen), kind="stable")
        self._chosen = np.asarray(chosen, np.int64)[order].tolist()

    def __len__(self) -> int:
        return math.ceil(len(self._chosen) / self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for first in range(0, len(self._chosen), self._batch_size):
            found = [self._examples[index] for index in self._chosen[first : first + self._batch_size]]
            yield _padded(found, self._batch_size, self._seq_len)

    def rows(self) -> Iterator[NDArray[np.int64]]:
        """Yield the targets of each example that count, (n,), in order."""
        for index in self._chosen:
            targets = _row(self._examples[index], self._seq_len)[1]
            yield targets[targets != IGNORED]


def _row(example: Example, seq_len: int) -> Batch:
    """Return the tokens and the targets of an example, int64 (n,) each, n at most `seq_len`."""
    ids = example.ids[: seq_len + 1].astype(np.int64)
    return ids[:-1], np.where(example.answers[1 : seq_len + 1], ids[1:], IGNORED)


def _padded(examples: Sequence[Example], batch_size: int, seq_len: int) -> Batch:
    """Return examples as rows of the least length that takes them, and ignored rows up to `batch_size`."""
    rows = [_row(example, seq_len) for example in examples]
    longest = max(len(tokens) for tokens, _ in rows)
    length = next(length for length in (math.ceil(seq_len / part) for part in _PARTS) if longest <= length)
    tokens = np.full((batch_size, length), _PADDING, np.int64)
    targets = np.full((batch_size, length), IGNORED, np.int64)
    for index, (ids, wanted) in enumerate(rows):
        tokens[index, : len(ids)], targets[index, : len(ids)] = ids, wanted
    return tokens, targets
