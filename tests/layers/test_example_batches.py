"""Batches of examples: packed rows, each example once in a pass, and a position to resume from. test_packing.py tests rows."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import GPT2, GPT2Config
from asynctile.layers.data import Batch
from asynctile.layers.example_batches import ExampleBatches, ExampleValidation
from asynctile.layers.examples import Example, Examples
from tests.layers.test_examples import example, kept


@pytest.fixture
def examples(tmp_path: Path) -> Examples:
    """103 examples of 2 to 41 tokens, each of which begins with a number of its own."""
    random = np.random.default_rng(3)
    made = []
    for number in range(103):
        found = example(int(random.integers(2, 42)), 1)
        found.ids[0] = 1000 + number
        found.answers[2:] = random.random(len(found.ids) - 2) < 0.5
        made.append(found)
    return Examples(kept(tmp_path, made, 40), 0, 103)


def tokens_of(batch: Batch) -> list[int]:
    """Return the first tokens of the examples of a batch."""
    tokens, positions = batch[0].reshape(-1), batch[-1].reshape(-1)
    return [int(tokens[start]) for start in np.flatnonzero(positions == 0) if tokens[start]]


def test_a_row_holds_examples_with_positions_of_their_own(tmp_path: Path) -> None:
    found = Examples(kept(tmp_path, [example(4, 1, 3), example(9, 5), example(5, 2), example(2, 1)]), 0, 4)
    tokens, targets, positions = ExampleBatches(found, 2, 8, seed=1).batch(0)
    assert tokens.dtype == targets.dtype == positions.dtype == np.int64
    rows = zip(tokens.tolist(), targets.tolist(), positions.tolist(), strict=True)
    assert sorted(rows) == [
        ([1, 2, 3, 1, 2, 3, 4, 1], [2, -100, 4, -100, 3, -100, -100, 2], [0, 1, 2, 0, 1, 2, 3, 0]),
        ([1, 2, 3, 4, 5, 6, 7, 8], [-100, -100, -100, -100, 6, -100, -100, -100], [*range(8)]),
    ]


def test_padding_is_ignored_and_each_token_of_it_stands_alone(tmp_path: Path) -> None:
    found = Examples(kept(tmp_path, [example(4, 1, 3), example(9, 5)]), 0, 2)
    tokens, targets, positions = ExampleBatches(found, 2, 8, seed=1).batch(0)
    row = 0 if tokens[0, 3] == 0 else 1
    assert tokens[row].tolist() == [1, 2, 3, 0, 0, 0, 0, 0] and targets[row].tolist() == [2, -100, 4, *[-100] * 5]
    assert positions[row].tolist() == [0, 1, 2, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("batch_size", [4, 103, 1])
def test_a_pass_gives_each_example_once(examples: Examples, batch_size: int) -> None:
    batches = ExampleBatches(examples, batch_size, 40, seed=1)
    passes = [[id for batch in itertools.islice(batches, batches.of_pass) for id in tokens_of(batch)] for _ in range(3)]
    for found in passes:
        assert sorted(found) == list(range(1000, 1103))
    assert len({tuple(found) for found in passes}) == 3


def test_batches_have_one_shape_and_little_padding(examples: Examples) -> None:
    batches = ExampleBatches(examples, 4, 40, seed=1)
    found = list(itertools.islice(batches, batches.of_pass))
    assert {part.shape for batch in found for part in batch} == {(4, 40)}
    filled = [(batch[1] != -100).any(axis=1).sum() for batch in found]
    assert set(filled) <= {3, 4}
    assert sum(len(examples[index].ids) - 1 for index in range(103)) > 0.85 * 40 * sum(filled)


def test_batch_n_is_a_function_of_seed_and_n_alone(examples: Examples) -> None:
    first = [tokens for tokens, _, _ in itertools.islice(ExampleBatches(examples, 3, 40, seed=5), 80)]
    other = ExampleBatches(examples, 3, 40, seed=5)
    for position in (79, 3, 34, 40, 0):
        np.testing.assert_array_equal(other.batch(position)[0], first[position])
    assert any(not np.array_equal(ExampleBatches(examples, 3, 40, seed=6).batch(n)[0], first[n]) for n in range(3))


def test_batches_resume_exactly(examples: Examples) -> None:
    batches = ExampleBatches(examples, 3, 40, seed=2**64 - 1)
    for _ in range(33):
        next(batches)
    state = json.loads(json.dumps(batches.state_dict()))
    expected = [next(batches) for _ in range(4)]
    again = ExampleBatches(examples, 3, 40, seed=2**64 - 1)
    again.load_state_dict(state)
    for batch in expected:
        np.testing.assert_array_equal(next(again), batch)
    for change in ({"seed": 2}, {"batch_size": 4}, {"seq_len": 8}, {"examples": 102}, {"tokens": 1}, {"rows": 9},
                   {"position": -1}):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(change))):
            again.load_state_dict(state | change)
    again.load_state_dict(state | {"position": 2**63 - 1})
    next(again)


def test_fewer_examples_than_a_batch_are_refused(examples: Examples) -> None:
    with pytest.raises(ValueError, match=r"has 103 examples, fewer than the 104 of a step; give more examples or a smaller"):
        ExampleBatches(examples, 104, 40, seed=1)
    for words in ((0, 40, 1), (1, 0, 1), (1, 40, -1)):
        with pytest.raises(ValueError, match="cannot be used"):
            ExampleBatches(examples, *words)


def test_validation_takes_all_examples_once_or_a_few_spread_evenly(examples: Examples) -> None:
    batches = ExampleValidation(examples, 4, 40)
    found = list(batches)
    assert len(batches) == len(found)
    assert sorted(number for batch in found for number in tokens_of(batch)) == [*range(1000, 1103)]
    assert {part.shape for batch in found for part in batch} == {(4, 40)}
    assert sum(map(len, batches.rows())) == sum(int((targets != -100).sum()) for _, targets, _ in found)
    few = ExampleValidation(examples, 4, 40, limit=len(examples.ids) // 10)
    assert sorted(number - 1000 for batch in few for number in tokens_of(batch)) == [number * 103 // 11 for number in range(11)]
    for batch, again in zip(few, few, strict=True):
        np.testing.assert_array_equal(batch, again)
    with pytest.raises(ValueError, match="limit 0"):
        ExampleValidation(examples, 4, 40, limit=0)


def test_shorter_windows_leave_out_examples_without_an_answer_in_them(tmp_path: Path) -> None:
    found = Examples(kept(tmp_path, [example(9, 8), example(9, 4), example(9, 5, 6)]), 0, 3)
    ((tokens, targets, _),) = ExampleValidation(found, 4, 4)
    assert targets.tolist() == [[-100] * 3 + [5], *[[-100] * 4] * 3] and tokens[0].tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="no example of the 3 has an answer that begins within 3 tokens"):
        ExampleValidation(found, 4, 3)


async def test_neither_neighbours_nor_padding_change_a_loss(tmp_path: Path) -> None:
    """The loss of a batch is that of its examples one by one, weighted by their targets."""
    random = np.random.default_rng(5)
    made = [Example(random.integers(0, 90, n).astype(np.uint16), np.arange(n) > n // 2) for n in (3, 9, 5, 14, 4, 6)]
    found = Examples(kept(tmp_path, made, 16), 0, 6)
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, GPT2Config(n_layer=2, n_head=2, n_embd=16, block_size=16, vocab_size=90), seed=3)
        together = await model.loss(*ExampleBatches(found, 3, 16, seed=1).batch(0))
        total = count = 0.0
        for ids, answers in made:
            targets = np.where(answers[1:], ids[1:].astype(np.int64), -100)
            total += await model.loss(ids[None, :-1], targets[None]) * answers[1:].sum()
            count += answers[1:].sum()
    assert together == pytest.approx(total / count, abs=1e-6)
