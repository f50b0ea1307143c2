"""The loss of a bigram model: its formula from the definition, that it is a distribution, and large vocabularies."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from asynctile.layers.entropy import bigram_loss


def slow_loss(training: list[int], held_out: list[int], vocab_size: int) -> float:
    """Return the loss of interpolated Kneser-Ney, computed pair by pair."""

    def discount(counts: Counter[object]) -> float:
        once, twice = (sum(count == times for count in counts.values()) for times in (1, 2))
        return (once + 1) / (once + 2 * twice + 2)

    together, seen = Counter(itertools.pairwise(training)), Counter(training[:-1])
    successors, predecessors = Counter(a for a, _ in together), Counter(b for _, b in together)
    upper, lower = discount(together), discount(predecessors)

    def of_token(b: int) -> float:
        return (max(predecessors[b] - lower, 0) + lower * len(predecessors) / vocab_size) / len(together)

    def likely(a: int, b: int) -> float:
        if not seen[a]:
            return of_token(b)
        return (max(together[a, b] - upper, 0) + upper * successors[a] * of_token(b)) / seen[a]

    return float(-np.mean([math.log(likely(a, b)) for a, b in itertools.pairwise(held_out)]))


def test_the_loss_is_the_formula_on_the_counts_of_the_training_text() -> None:
    tokens = np.random.default_rng(3).integers(0, 9, 600).astype(np.uint16)
    tokens[::2] //= 3
    training, held_out = tokens[:400] % 8, tokens[400:]  # 8 is held out, and was never seen
    assert bigram_loss(training, held_out, 9) == pytest.approx(slow_loss(training.tolist(), held_out.tolist(), 9), rel=1e-12)


def test_only_pairs_whose_second_token_counts_are_measured() -> None:
    training, held_out = [0, 1, 1, 2, 0, 1, 3, 0, 2], [0, 1, 2, 0, 3, 1]
    counted = np.array([True, False, True, False, False, True])
    pairs = [slow_loss(training, held_out[place - 1 : place + 1], 4) for place in (2, 5)]
    assert bigram_loss(np.array(training), np.array(held_out), 4, counted) == pytest.approx(np.mean(pairs), rel=1e-12)
    with pytest.raises(ValueError, match="no pair of ids"):
        bigram_loss(np.array(training), np.array(held_out), 4, np.zeros(6, np.bool_))


@pytest.mark.parametrize("training", [[0, 1, 1, 2, 0, 1, 3], [0, 1], [2] * 50])
def test_the_probabilities_after_any_token_add_up_to_one(training: list[int]) -> None:
    for previous in range(5):
        likely = [math.exp(-bigram_loss(np.array(training), np.array([previous, b]), 5)) for b in range(5)]
        assert sum(likely) == pytest.approx(1, rel=1e-12) and min(likely) > 0


def test_known_texts_have_known_losses() -> None:
    assert bigram_loss(np.array([0, 1] * 5_000), np.array([0, 1] * 50), 2) == pytest.approx(0, abs=1e-3)
    uniform = np.random.default_rng(0).integers(0, 4, 100_000)
    assert bigram_loss(uniform[:50_000], uniform[50_000:], 4) == pytest.approx(math.log(4), abs=1e-3)


def test_a_large_vocabulary_and_a_short_text_do_not_make_the_loss_too_low() -> None:
    """Independent tokens: a pair that comes once tells nothing, and no model is below their entropy."""
    likely = 1 / np.arange(1, 2001)
    likely /= likely.sum()
    tokens = np.random.default_rng(1).choice(2000, 60_000, p=likely)
    entropy = float(-likely @ np.log(likely))
    assert entropy - 0.05 < bigram_loss(tokens[:50_000], tokens[50_000:], 2000) < entropy + 0.8


def test_ids_outside_the_vocabulary_are_left_out() -> None:
    tokens = np.array([0, 1, 1, 0, 1, 0, 0, 1] * 20)
    assert bigram_loss(np.append(tokens, 70_000), tokens, 2) == bigram_loss(tokens, np.append(tokens, 2), 2)


@pytest.mark.parametrize("tokens", [[1], [], [1, 5]])
def test_a_text_without_a_pair_is_refused(tokens: list[int]) -> None:
    whole = np.array([0, 1, 2])
    for parts in ((np.array(tokens, np.int64), whole), (whole, np.array(tokens, np.int64))):
        with pytest.raises(ValueError, match=f"{len(tokens)} tokens contain no pair of ids below 5 to count; give more text"):
            bigram_loss(*parts, 5)
