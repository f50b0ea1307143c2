"""Examples of token ids in files: texts of their own, of which some tokens are answers.

Covers `ExampleFile`, `Examples`, `keep_examples` and `open_examples`. Three files beside the record of tokens.py: `tokens.bin`
has the ids of all examples one behind the other, `answers.bin` a byte for each id, 1 in an answer, and `starts.bin` where each
example begins. Parts are read on demand, so data may be larger than RAM. chats.py makes examples, example_batches.py batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.tokenizer import Tokenizer
from asynctile.layers.tokens import TOKENS, Text, TokenFile, TokenView, filling, is_of, origin_of, read_record
from asynctile.storage.counts import counted
from asynctile.storage.errors import CheckpointError
from asynctile.storage.input import shown

__all__ = ["Example", "ExampleFile", "Examples", "has_examples", "keep_examples", "open_examples"]

ANSWERS, STARTS = "answers.bin", "starts.bin"
#: Entries of the record that only making the examples tells.
_FOUND = ("examples", "nbytes", "cut", "left_out")


class Example(NamedTuple):
    """The ids of an example (n,), and for each whether it belongs to an answer (n,), bool."""

    ids: NDArray[Any]
    answers: NDArray[np.bool_]


class ExampleFile:
    """The examples in a folder, open: their ids, answers and starts.

    seq_len: the most targets of an example. cut, left_out: how many were longer, or had no answer among these targets.
    """

    def __init__(self, ids: TokenFile, answers: TokenFile, starts: TokenFile, *, seq_len: int, cut: int, left_out: int) -> None:
        self.ids, self.answers, self.starts = ids, answers, starts
        self.seq_len, self.cut, self.left_out = seq_len, cut, left_out

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Example:
        """Return an example. CheckpointError if the file of starts is damaged: files of tokens have no checksums."""
        start, stop = self.starts[index : index + 2].tolist()
        if not (2 <= stop - start <= self.seq_len + 1 and stop <= len(self.ids)):
            raise CheckpointError(f"{self.starts.path} is damaged: example {index} has the tokens {start} to {stop} of "
                                  f"{len(self.ids)}; restore the file, or start another run")
        return Example(self.ids[start:stop], self.answers[start:stop].astype(np.bool_))

    @property
    def note(self) -> str | None:
        """A sentence about examples that were cut or left out; None if there were none."""
        said = []
        if self.cut:
            said.append(f"{_were(self.cut)} cut to the {self.seq_len:,} tokens of a sequence")
        if self.left_out:
            said.append(f"{_were(self.left_out)} left out: the answer begins behind {self.seq_len:,} tokens")
        return ", and ".join(said) or None


def _were(count: int) -> str:
    return f"{counted(count, 'example')} {'was' if count == 1 else 'were'}"


class Examples:
    """The examples `start` to `stop` of a file."""

    def __init__(self, file: ExampleFile, start: int, stop: int) -> None:
        self.file, self.start, self.stop = file, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int) -> Example:
        """Return an example by its number in this part."""
        return self.file[self.start + index]

    def lengths(self) -> NDArray[np.int64]:
        """Return how many tokens each example has, (n,), as the file of starts says; only reading one checks it."""
        starts = self.file.starts[self.start : self.stop + 1].astype(np.int64)
        return starts[1:] - starts[:-1]

    @property
    def ids(self) -> TokenView:
        """The ids of all examples, one behind the other."""
        return TokenView(self.file.ids, *self._ends)

    @property
    def answers(self) -> TokenView:
        """For each id 1 if it belongs to an answer, otherwise 0."""
        return TokenView(self.file.answers, *self._ends)

    @property
    def _ends(self) -> tuple[int, int]:
        first, last = (int(self.file.starts[place : place + 1][0]) for place in (self.start, self.stop))
        return first, max(first, last)


def keep_examples(
    source: Text, tokenizer: Tokenizer, folder: Path, format: Mapping[str, Any], seq_len: int, examples: Iterable[Example]
) -> ExampleFile:
    """Write examples to `folder`, or open them if they are there; return them.

    An example that is longer than `seq_len` + 1 tokens is cut, which leaves `seq_len` targets. One without an answer among
    these is left out. `examples` is read only if they are not there: existing ones are used if the source, the sizes and times
    of its files, the tokenizer, `format` and `seq_len` are the same.

    ValueError if no example is left, OSError if the disk fails.
    """
    origin = origin_of(source, tokenizer) | {**format, "seq_len": seq_len}
    try:
        if is_of(folder, origin, _FOUND):
            return open_examples(folder)
    except (CheckpointError, ValueError):
        pass  # incomplete: this is only a cache
    with filling(folder, (TOKENS, ANSWERS, STARTS), origin) as ((ids, answers, starts), record):
        end = count = cut = left_out = 0
        starts.append(np.zeros(1, np.uint64))
        for example in examples:
            kept = Example(example.ids[: seq_len + 1], example.answers[: seq_len + 1])
            if not kept.answers[1:].any():
                left_out += 1
                continue
            ids.append(kept.ids)
            answers.append(kept.answers.view(np.uint8))
            end, count, cut = end + len(kept.ids), count + 1, cut + (len(kept.ids) < len(example.ids))
            starts.append(np.asarray([end], np.uint64))
        if not count:
            raise ValueError(f"data {source.path} has no answer that begins within {seq_len} tokens, the length of a sequence "
                             f"({left_out:,} examples); raise --seq-len, or give shorter chats")
        record |= {"examples": count, "nbytes": ids.nbytes, "cut": cut, "left_out": left_out}
    return open_examples(folder)


def has_examples(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder's tokens are examples. CheckpointError if their record is missing or damaged."""
    # One entry that is left suffices: ids of chats must never be taken for those of a text, all of which is learned.
    return not read_record(folder).keys().isdisjoint(("seq_len", "examples", "cut", "left_out"))


def open_examples(folder: str | os.PathLike[str]) -> ExampleFile:
    """Return the examples that `keep_examples` has written to a folder.

    CheckpointError, naming the file, if the record is missing or damaged. ValueError if a file is missing or has another size.
    """
    known, folder = read_record(folder), Path(folder)
    for name in ("seq_len", *_FOUND):
        if type(known.get(name)) is not int or known[name] < 0:
            raise CheckpointError(f"the record of {folder} is damaged: it says {name} {shown(known.get(name))}, expected a "
                                  "count; start another run")
    ids = TokenFile(folder / TOKENS, known["dtype"])
    found = ExampleFile(ids, TokenFile(folder / ANSWERS, np.uint8), TokenFile(folder / STARTS, np.uint64),
                        seq_len=known["seq_len"], cut=known["cut"], left_out=known["left_out"])  # fmt: skip
    for file, nbytes in ((ids, known["nbytes"]), (found.answers, len(ids)), (found.starts, 8 * (known["examples"] + 1))):
        if file.stat.st_size != nbytes:
            raise ValueError(f"token file {file.path} has {file.stat.st_size} bytes, but its record says {shown(nbytes)}; "
                             "copy it again or start another run")
    return found
