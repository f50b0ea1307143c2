"""AdamW's schedule and the numbers that a step gets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from asynctile.layers.optimizer import AdamW


def test_without_a_schedule_the_rate_is_constant() -> None:
    assert {AdamW(lr=1e-3).rate(step) for step in (1, 2, 10**6)} == {1e-3}


def test_warm_up_then_cosine() -> None:
    optimizer = AdamW(lr=1.0, warmup=10, decay_steps=110, min_lr=0.1)
    assert [optimizer.rate(step) for step in (1, 5, 10)] == pytest.approx([0.1, 0.5, 1.0])
    assert optimizer.rate(60) == pytest.approx(0.55)
    assert optimizer.rate(35) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert optimizer.rate(110) == optimizer.rate(500) == 0.1


def test_warm_up_then_linear() -> None:
    optimizer = AdamW(lr=1.0, warmup=10, decay_steps=110, min_lr=0.1, decay="linear")
    assert [optimizer.rate(step) for step in (1, 10, 11, 35, 60)] == pytest.approx([0.1, 1.0, 0.991, 0.775, 0.55])
    assert optimizer.rate(110) == optimizer.rate(500) == 0.1
    assert AdamW(lr=1.0, warmup=5, decay_steps=5, decay="linear").rate(5) == 1.0


def test_hyper_is_computed_in_double_and_rounded_once() -> None:
    optimizer = AdamW(lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    hyper = optimizer.hyper(7, factor=0.5)
    expected = [0.5, 0.9, 1 - 0.9, 0.95, 1 - 0.95, 1 - 3e-5, 3e-4 / (1 - 0.9**7), math.sqrt(1 - 0.95**7), 1e-8]
    assert hyper.dtype == np.float32
    assert hyper.tolist() == np.array(expected, np.float32).tolist()


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"lr": 0.0}, "lr is 0.0"), ({"lr": float("nan")}, "lr is nan"), ({"eps": -1.0}, "eps is -1.0"),
    ({"weight_decay": -0.1}, "weight_decay is -0.1"), ({"betas": (0.9, 1.0)}, "of at least 0 and below 1"),
    ({"betas": (0.9,)}, "expected two numbers"), ({"warmup": -1}, "warmup is -1"), ({"warmup": 1.5}, "warmup is 1.5"),
    ({"decay_steps": 0}, "decay_steps is 0"), ({"warmup": 10, "decay_steps": 5}, "decay_steps 5 ends before warmup 10"),
    ({"lr": 0.1, "min_lr": 0.2}, "min_lr 0.2 is above lr 0.1"),
    ({"decay": "constant"}, "decay is 'constant', expected 'cosine' or 'linear'"), ({"decay": ["linear"]}, "expected 'cosine'"),
])  # fmt: skip
def test_wrong_values_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AdamW(**changes)
