"""From tokens to batches, and the entropy of tokens. test_tokens.py tests how tokens are made."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from asynctile.layers.data import Batches, ValidationBatches
from asynctile.layers.tokens import TokenFile, split


def counted(path, n, dtype=np.uint16):
    np.arange(n, dtype=dtype).tofile(path)
    return TokenFile(path, dtype)


def test_the_last_part_is_held_out(tmp_path):
    file = counted(tmp_path / "t", 1001)
    train, validation = split(file)
    assert (len(train), len(validation)) == (950, 51)
    assert train[:3].tolist() == [0, 1, 2]
    assert train[948:2000].tolist() == [948, 949]
    assert validation[:2].tolist() == [950, 951]
    assert validation[5:2].size == 0
    for fraction in (0, 1, -0.1, math.nan):
        with pytest.raises(ValueError, match="validation_fraction"):
            split(file, fraction)


def test_targets_are_the_next_tokens(tmp_path):
    train, _ = split(counted(tmp_path / "t", 1000))
    for tokens, targets in itertools.islice(Batches(train, 4, 8, seed=1), 5):
        assert tokens.shape == targets.shape == (4, 8)
        assert tokens.dtype == targets.dtype == np.int64
        assert tokens.flags.c_contiguous
        assert targets.flags.c_contiguous
        np.testing.assert_array_equal(targets, tokens + 1)
        assert targets.max() < 950


def test_batch_n_is_a_function_of_seed_and_n_alone():
    tokens = np.arange(5000)
    first = [batch[0] for batch in itertools.islice(Batches(tokens, 3, 7, seed=5), 6)]
    np.testing.assert_array_equal(Batches(tokens, 3, 7, seed=5).batch(4)[0], first[4])
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(Batches(tokens, 3, 7, seed=6).batch(0)[0], first[0])
    # Fixed values: a run that is resumed with another numpy must get the batches that it would have got.
    assert first[0][:, 0].tolist() == [2780, 3099, 4672]


def test_windows_reach_every_token():
    batches = Batches(np.arange(12), 64, 8, seed=0)
    starts = {int(start) for tokens, _ in itertools.islice(batches, 4) for start in tokens[:, 0]}
    assert starts == {0, 1, 2, 3}


def test_batches_resume_exactly():
    batches = Batches(np.arange(5000), 3, 7, seed=2**64 - 1)
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(batches.state_dict()))
    expected = [next(batches)[0] for _ in range(3)]
    again = Batches(np.arange(5000), 3, 7, seed=2**64 - 1)
    again.load_state_dict(state)
    for batch in expected:
        np.testing.assert_array_equal(next(again)[0], batch)


@pytest.mark.parametrize(
    "change",
    [{"seed": 2}, {"batch_size": 4}, {"seq_len": 8}, {"tokens": 4999}, {"position": -1}, {"position": None}],
)
def test_a_state_of_other_batches_is_refused(change):
    batches = Batches(np.arange(5000), 3, 7, seed=1)
    with pytest.raises(ValueError, match=next(iter(change))):
        batches.load_state_dict(batches.state_dict() | change)


def test_validation_windows_are_fixed_complete_and_do_not_overlap():
    tokens = np.arange(1000)
    batches = ValidationBatches(tokens, 4, 10)
    found = list(batches)
    assert (len(batches), len(found), batches.tokens) == (25, 25, 990)  # 3 of 99 windows do not fill the last batch
    inputs, targets = (np.concatenate(parts) for parts in zip(*found, strict=True))
    counted = targets[:, 0] != -100
    assert counted.tolist() == [True] * 99 + [False]
    np.testing.assert_array_equal(targets[counted], inputs[counted] + 1)
    np.testing.assert_array_equal(inputs[counted].reshape(-1), np.arange(990))
    np.testing.assert_array_equal(np.concatenate(list(batches.rows())), np.arange(1, 991))


def test_a_few_validation_windows_are_spread_over_the_text():
    few = ValidationBatches(np.arange(1000), 4, 10, limit=75)
    assert (few.tokens, len(few)) == (80, 2)
    starts = [batch[:, 0].tolist() for batch, _ in few]
    assert starts == [[0, 120, 240, 370], [490, 610, 740, 860]]
    assert [batch[:, 0].tolist() for batch, _ in few] == starts
    assert ValidationBatches(np.arange(1000), 4, 10, limit=10**9).tokens == 990


def test_leftover_windows_fill_a_batch_with_ignored_targets():
    ((tokens, targets),) = ValidationBatches(np.arange(25), 4, 10, limit=30)
    assert tokens[:, 0].tolist() == [0, 10, 0, 0]
    assert (targets[2:] == -100).all()
    np.testing.assert_array_equal(targets[:2], tokens[:2] + 1)


def test_data_shorter_than_one_sequence_is_refused_with_advice():
    for make in (lambda: Batches(np.arange(8), 1, 8, seed=0), lambda: ValidationBatches(np.arange(8), 1, 8)):
        with pytest.raises(
            ValueError, match=r"8 tokens, fewer than one sequence needs: .* seq_len \+ 1 = 9; give more text"
        ):
            make()
    assert Batches(np.arange(9), 1, 8, seed=0).batch(0)[0].tolist() == [list(range(8))]


@pytest.mark.parametrize("arguments", [
    {"batch_size": 0}, {"batch_size": 1.5}, {"seq_len": -1}, {"seq_len": True}, {"seed": -1}, {"seed": 2**64}, {"seed": 0.5},
])  # fmt: skip
def test_numbers_out_of_range_are_named(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"{name} {value!r}".replace(".", r"\.")):
        Batches(np.arange(100), **({"batch_size": 2, "seq_len": 4, "seed": 0} | arguments))


def test_a_limit_below_one_is_named():
    with pytest.raises(ValueError, match="limit 0"):
        ValidationBatches(np.arange(100), 1, 4, limit=0)


@pytest.mark.parametrize("position", [-1, 2**63, 10**99, 1.5, True, None, "1"])
def test_an_invalid_position_is_refused(position):
    batches = Batches(np.arange(100), 2, 4, 1)
    with pytest.raises(ValueError, match="position"):
        batches.load_state_dict(batches.state_dict() | {"position": position})
    batches.load_state_dict(batches.state_dict() | {"position": 2**63 - 1})
    next(batches)
