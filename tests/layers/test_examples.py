"""Examples in files: cut to a sequence, read on demand, and refused when damaged. test_chats.py tests how they are made."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from asynctile.layers.examples import Example, ExampleFile, Examples, has_examples, keep_examples, open_examples
from asynctile.layers.text import TextSource
from asynctile.layers.tokenizer import ByteTokenizer
from asynctile.storage.errors import CheckpointError


def example(length: int, *answers: int) -> Example:
    """Return the ids 1 to `length`, of which those at `answers` belong to one."""
    is_answer = np.zeros(length, np.bool_)
    is_answer[list(answers)] = True
    return Example(np.arange(1, length + 1, dtype=np.uint16), is_answer)


def kept(folder: Path, examples: list[Example], seq_len: int = 8) -> ExampleFile:
    (folder / "a.txt").write_text("the source")
    return keep_examples(TextSource(folder / "a.txt"), ByteTokenizer(), folder / "tokens", {}, seq_len, examples)


def test_examples_are_read_back_one_by_one(tmp_path: Path) -> None:
    given = [example(3, 1), example(9, 2, 8), example(2, 1)]
    found = kept(tmp_path, given)
    assert (len(found), found.note) == (3, None)
    assert sorted(os.listdir(tmp_path / "tokens")) == ["answers.bin", "starts.bin", "tokens.bin", "tokens.json"]
    part = Examples(open_examples(tmp_path / "tokens"), 1, 3)
    assert (len(part), part.lengths().tolist()) == (2, [9, 2])
    for index, expected in enumerate(given):
        np.testing.assert_array_equal(found[index].ids, expected.ids)
        np.testing.assert_array_equal(found[index].answers, expected.answers)
    np.testing.assert_array_equal(part[1].ids, given[2].ids)
    assert part.ids[:].tolist() == [*range(1, 10), 1, 2]
    assert part.answers[:].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1]
    assert has_examples(tmp_path / "tokens")


def test_a_long_example_is_cut_and_one_without_an_answer_is_left_out(tmp_path: Path) -> None:
    found = kept(tmp_path, [example(12, 3, 11), example(12, 9), example(9, 8), example(10, 0, 9)])
    assert [len(found[index].ids) for index in range(len(found))] == [9, 9]
    assert (found.cut, found.left_out) == (1, 2)
    sentence = ("1 example was cut to the 8 tokens of a sequence, and 2 examples were left out: the answer begins behind 8 "
                "tokens")
    assert found.note == open_examples(tmp_path / "tokens").note == sentence
    with pytest.raises(ValueError, match=r"no answer that begins within 8 tokens, .* \(1 examples\); raise --seq-len"):
        keep_examples(TextSource(tmp_path / "a.txt"), ByteTokenizer(), tmp_path / "other", {}, 8, [example(12, 9)])
    assert os.listdir(tmp_path / "other") == []


def changed(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        record = json.loads((folder / "tokens.json").read_text())
        (folder / "tokens.json").write_text(json.dumps(record | values))

    return change


def rewritten(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).write_bytes(content)][0] and None


@pytest.mark.parametrize(("change", "error", "sentence"), [
    (changed(dtype="V0"), CheckpointError, "dtype 'V0'"), (changed(examples=-1), CheckpointError, "it says examples -1"),
    (changed(examples="2"), CheckpointError, "it says examples '2', expected a count; start another run"),
    (changed(seq_len=None), CheckpointError, "it says seq_len None"), (changed(cut=True), CheckpointError, "it says cut True"),
    (changed(examples=10**80), ValueError, r"starts\.bin has 24 bytes, but its record says 8000"),
    (changed(nbytes=12), ValueError, r"tokens\.bin has 10 bytes, but its record says 12; copy it again"),
    (rewritten("answers.bin", b"\1"), ValueError, r"answers\.bin has 1 bytes, but its record says 5"),
    (rewritten("starts.bin", b"1234567"), ValueError, r"starts\.bin has 7 bytes, expected a multiple of 8"),
    (lambda folder: os.remove(folder / "starts.bin"), ValueError, r"starts\.bin cannot be read: No such file"),
])  # fmt: skip
def test_damage_is_named_when_examples_are_opened(
    tmp_path: Path, change: Callable[[Path], None], error: type[Exception], sentence: str
) -> None:
    kept(tmp_path, [example(3, 1), example(2, 1)])
    change(tmp_path / "tokens")
    with pytest.raises(error, match=sentence):
        open_examples(tmp_path / "tokens")


@pytest.mark.parametrize("starts", [[0, 9, 5], [3, 3, 5], [4, 3, 5], [0, 2**63, 5], [2**63, 2**63 + 2, 5], [0, 1, 5]])
def test_starts_that_are_damaged_are_named_when_an_example_is_read(tmp_path: Path, starts: list[int]) -> None:
    kept(tmp_path, [example(3, 1), example(2, 1)])
    np.asarray(starts, np.uint64).tofile(tmp_path / "tokens" / "starts.bin")
    found = open_examples(tmp_path / "tokens")
    with pytest.raises(CheckpointError, match=rf"starts\.bin is damaged: example 0 has the tokens {starts[0]} to {starts[1]} "):
        found[0]
