"""Batches of examples: padded rows, few lengths, each example once in a pass, and a position to resume from."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import GPT2, GPT2Config
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


def test_a_row_is_an_example_padded_with_ignored_targets(tmp_path: Path) -> None:
    found = Examples(kept(tmp_path, [example(4, 1, 3), example(9, 5)]), 0, 2)
    tokens, targets = ExampleBatches(found, 2, 8, seed=1).batch(0)
    assert tokens.dtype == targets.dtype == np.int64 and tokens.shape == targets.shape == (2, 8)
    assert sorted(tokens.tolist()) == [[1, 2, 3, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7, 8]]
    assert sorted(targets.tolist()) == [[-100, -100, -100, -100, 6, -100, -100, -100], [2, -100, 4, *[-100] * 5]]


def test_a_pass_gives_each_example_once_but_the_rest(examples: Examples) -> None:
    for batch_size, left in ((4, 3), (103, 0), (1, 0)):
        batches = ExampleBatches(examples, batch_size, 40, seed=1)
        passes = [[id for tokens, _ in itertools.islice(batches, 103 // batch_size) for id in tokens[:, 0]] for _ in range(3)]
        for found in passes:
            assert len(found) == len(set(found)) == 103 - left
        assert len({tuple(found) for found in passes}) == 3


def test_batches_have_one_of_four_lengths_and_little_padding(examples: Examples) -> None:
    found = list(itertools.islice(ExampleBatches(examples, 4, 40, seed=1), 25))
    lengths = [tokens.shape[1] for tokens, _ in found]
    assert set(lengths) <= {5, 10, 20, 40} and len(set(lengths)) >= 3
    assert lengths != sorted(lengths)
    for tokens, targets in found:
        assert (targets != -100).any(axis=1).all()
        longest = max(np.flatnonzero(row)[-1] + 1 for row in tokens)
        assert tokens.shape[1] == next(length for length in (5, 10, 20, 40) if longest <= length)


def test_batch_n_is_a_function_of_seed_and_n_alone(examples: Examples) -> None:
    first = [tokens for tokens, _ in itertools.islice(ExampleBatches(examples, 3, 40, seed=5), 80)]
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
    for change in ({"seed": 2}, {"batch_size": 4}, {"seq_len": 8}, {"examples": 102}, {"tokens": 1}, {"position": -1}):
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
    numbers = [int(row[0]) for tokens, targets in found for row, wanted in zip(tokens, targets, strict=True)
               if (wanted != -100).any()]  # fmt: skip
    assert (len(batches), len(found)) == (26, 26) and sorted(numbers) == list(range(1000, 1103))
    assert [tokens.shape[1] for tokens, _ in found] == sorted(tokens.shape[1] for tokens, _ in found)
    counts = sum(int((targets != -100).sum()) for _, targets in found)
    assert sum(map(len, batches.rows())) == counts
    few = ExampleValidation(examples, 4, 40, limit=len(examples.ids) // 10)
    chosen = sorted(int(row[0]) - 1000 for tokens, _ in few for row in tokens if row[0])
    assert chosen == [number * 103 // 11 for number in range(11)]
    for (tokens, targets), (again, wanted) in zip(few, few, strict=True):
        np.testing.assert_array_equal(tokens, again)
        np.testing.assert_array_equal(targets, wanted)
    with pytest.raises(ValueError, match="limit 0"):
        ExampleValidation(examples, 4, 40, limit=0)


def test_shorter_windows_leave_out_examples_without_an_answer_in_them(tmp_path: Path) -> None:
    found = Examples(kept(tmp_path, [example(9, 8), example(9, 4), example(9, 5, 6)]), 0, 3)
    ((tokens, targets),) = ExampleValidation(found, 4, 4)
    assert targets.tolist() == [[-100] * 3 + [5], *[[-100] * 4] * 3] and tokens[0].tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="no example of the 3 has an answer that begins within 3 tokens"):
        ExampleValidation(found, 4, 3)


async def test_padding_changes_no_loss(tmp_path: Path) -> None:
    """The loss of padded rows is that of the examples one by one, weighted by their targets."""
    random = np.random.default_rng(5)
    made = [Example(random.integers(0, 90, n).astype(np.uint16), np.arange(n) > n // 2) for n in (3, 9, 5, 14)]
    found = Examples(kept(tmp_path, made, 16), 0, 4)
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, GPT2Config(n_layer=2, n_head=2, n_embd=16, block_size=16, vocab_size=90), seed=3)
        together = await model.loss(*ExampleBatches(found, 4, 16, seed=1).batch(0))
        total = count = 0.0
        for ids, answers in made:
            targets = np.where(answers[1:], ids[1:].astype(np.int64), -100)
            total += await model.loss(ids[None, :-1], targets[None]) * answers[1:].sum()
            count += answers[1:].sum()
    assert together == pytest.approx(total / count, abs=1e-6)
