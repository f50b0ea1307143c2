"""Choosing a token: the allowed tokens under each setting, equal choices for equal seeds, and refusals.

tests/reference/test_sampling.py compares with the processors of transformers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asynctile.errors import AsynctileError
from asynctile.layers.sampling import Sampler, Sampling, weighted

INF, NAN = float("inf"), float("nan")


def logits_of(probabilities: list[float]) -> np.ndarray:
    return np.log(np.array(probabilities)).astype(np.float32)


def left(logits: np.ndarray, seen: Any = (), **settings: Any) -> list[int]:
    """Return the ids that may be chosen."""
    return weighted(logits, seen, Sampling(**{"temperature": 1, "top_k": None} | settings))[0].tolist()


#: Recorded when `Generator.choice` still chose among all tokens: size, temperature, top_k, seed; choices.
CHOICES = [
    (40, 0.8, 50, 1, [21, 39, 4, 36, 10, 14, 32, 17, 16, 2, 27, 25]),
    (40, 0.8, 5, 2, [20, 12, 37, 3, 21, 33, 12, 4, 9, 34, 13, 5]),
    (300, 1, None, 3, [27, 78, 235, 181, 22, 119, 144, 50, 221, 34, 119, 157]),
    (300, 1.7, 50, 4, [284, 157, 288, 29, 186, 106, 236, 50, 260, 160, 264, 150]),
    (300, 0.3, 3, 5, [277, 157, 182, 207, 21, 79, 137, 162, 9, 278, 125, 150]),
    (50257, 0.8, 50, 6, [26999, 16967, 18799, 19101, 49429, 31325, 33401, 16306, 33517, 6332, 2354, 42772]),
    (50257, 1.5, None, 7, [31411, 45083, 38986, 11326, 15085, 43902, 264, 41281, 40066, 23513, 15228, 13994]),
    (50257, 3, 1000, 0, [32044, 13551, 2022, 827, 40869, 45827, 30473, 36651, 27318, 47002, 41006, 150]),
]


@pytest.mark.parametrize(("size", "temperature", "top_k", "seed", "expected"), CHOICES)
def test_a_seed_chooses_the_tokens_that_it_always_chose(
    size: int, temperature: float, top_k: int | None, seed: int, expected: list[int]
) -> None:
    """The logits have ties, also at the border of top_k."""
    sampler = Sampler(Sampling(temperature=temperature, top_k=top_k, seed=seed))
    rows = [((np.arange(size) * 7919 + row * 104729) % 1009).astype(np.float32) / np.float32(100) for row in range(12)]
    assert [sampler.choose(row, ()) for row in rows] == expected


def test_choices_are_as_frequent_as_they_are_probable() -> None:
    sampler = Sampler(Sampling(temperature=1, top_k=3, seed=1))
    logits = logits_of([0.2, 0.05, 0.5, 0.01, 0.24])
    counts = np.bincount([sampler.choose(logits, ()) for _ in range(4000)], minlength=5)
    assert counts / 4000 == pytest.approx(np.array([20, 0, 50, 0, 24]) / 94, abs=0.03)


def test_without_a_seed_texts_differ() -> None:
    logits = np.zeros(1000, np.float32)
    one, other = ([sampler.choose(logits, ()) for _ in range(8)] for sampler in (Sampler(Sampling()), Sampler(Sampling())))
    assert one != other


def test_tokens_as_likely_as_the_last_of_top_k_stay() -> None:
    assert left(np.array([1, 3, 2, 2, 0], np.float32), top_k=2) == [1, 2, 3]
    assert left(np.array([1, 3, 2, 2, 0], np.float32), top_k=99) == [0, 1, 2, 3, 4]


def test_top_p_keeps_the_fewest_tokens_that_reach_the_share() -> None:
    logits = logits_of([0.1, 0.4, 0.05, 0.25, 0.2])
    shares = [0.01, 0.39, 0.41, 0.64, 0.66, 0.84, 0.86, 0.94, 0.96, 1]
    counts = [len(left(logits, top_p=share)) for share in shares]
    assert counts == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert left(logits, top_p=0.66) == [1, 3, 4]


def test_equally_likely_tokens_beyond_the_share_are_dropped() -> None:
    assert len(left(np.zeros(1000, np.float32), top_p=0.2505)) == 251
    assert left(logits_of([0.2, 0.2, 0.4, 0.2]), top_p=0.7) == [1, 2, 3]


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = logits_of([0.1, 0.4, 0.05, 0.25, 0.2])
    assert [left(logits, min_p=least) for least in (0, 0.2, 0.3, 0.55, 1)] == [
        [0, 1, 2, 3, 4], [0, 1, 3, 4], [1, 3, 4], [1, 3], [1]]  # fmt: skip


def test_top_p_is_a_share_of_the_rest_after_top_k_and_temperature_comes_first() -> None:
    logits = logits_of([0.4, 0.3, 0.2, 0.1])
    assert left(logits, top_p=0.5) == [0, 1]
    assert left(logits, top_k=2, top_p=0.5) == [0]
    assert left(logits_of([0.6, 0.4]), top_p=0.65) == [0, 1]
    assert left(logits_of([0.6, 0.4]), top_p=0.65, temperature=0.5) == [0]
    assert left(logits_of([0.6, 0.4]), min_p=0.6, temperature=0.5) == [0]


def test_a_repetition_penalty_makes_seen_tokens_less_likely_once() -> None:
    logits = np.array([2.0, 1.5, -1.0, -1.2], np.float32)
    assert Sampler(Sampling(temperature=0, repetition_penalty=1.5)).choose(logits, [0, 0, 0]) == 1
    assert Sampler(Sampling(temperature=0, repetition_penalty=1.5)).choose(logits, ()) == 0
    ids, weights = weighted(logits, np.array([0, 2, 0]), Sampling(temperature=1, top_k=None, repetition_penalty=2))
    assert ids.tolist() == [0, 1, 2, 3]
    assert weights == pytest.approx(np.exp(np.array([1.0, 1.5, -2.0, -1.2]) - 1.5), rel=1e-6)
    assert logits.tolist() == pytest.approx([2.0, 1.5, -1.0, -1.2])  # the array may belong to somebody else


@pytest.mark.parametrize("penalty", [1e-38, 1e38])
def test_no_penalty_makes_a_logit_infinite(penalty: float) -> None:
    logits = np.array([9, -9, 1, 0], np.float32)
    assert Sampler(Sampling(repetition_penalty=penalty, seed=1)).choose(logits, [0, 1, 2, 3]) != 1


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_named(value: float, temperature: float) -> None:
    logits = np.arange(5, dtype=np.float32)
    logits[2:4] = value
    with pytest.raises(AsynctileError, match="2 of the model's 5 logits are not finite"):
        Sampler(Sampling(temperature=temperature, top_k=3, seed=1)).choose(logits, ())


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 5e-324])
def test_near_temperature_zero_the_likeliest_is_taken(temperature: float) -> None:
    logits = np.array([3.0e38, -3.0e38, 3.2e38, 0.0], np.float32)
    chosen = {Sampler(Sampling(temperature=temperature, top_k=None, seed=seed)).choose(logits, ()) for seed in range(20)}
    assert chosen == {2}


def test_numpy_numbers_are_accepted() -> None:
    given = Sampling(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint8(4))
    assert given == Sampling(temperature=0.5, top_k=3, seed=4)
    assert type(given.temperature) is float and type(given.top_k) is int


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("temperature", -0.1, ValueError), ("temperature", NAN, ValueError), ("temperature", INF, ValueError),
        ("temperature", 10**400, ValueError), ("temperature", None, TypeError), ("temperature", True, TypeError),
        ("temperature", "1", TypeError), ("top_k", 0, ValueError), ("top_k", True, TypeError), ("top_k", 5.0, TypeError),
        ("top_p", 0, ValueError), ("top_p", 1.01, ValueError), ("top_p", NAN, ValueError), ("top_p", True, TypeError),
        ("min_p", -0.1, ValueError), ("min_p", 1.1, ValueError), ("min_p", "", TypeError),
        ("repetition_penalty", 0, ValueError), ("repetition_penalty", 1e-60, ValueError),
        ("repetition_penalty", INF, ValueError),
        ("repetition_penalty", [1.2], TypeError), ("seed", -1, ValueError), ("seed", 1.0, TypeError),
        ("seed", "1" * 1000, TypeError),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused_in_a_sentence(name: str, value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=rf"^{name} is .*, expected a (whole |finite )?number") as caught:
        Sampling(**{name: value})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
