"""Two versions measured in pairs: confidence intervals and their wording."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws import law

finite = st.floats(-1e6, 1e6)


@pytest.fixture(scope="module")
def paired(bench: Any) -> Any:
    return bench("paired")


@pytest.mark.parametrize(("count", "low", "high"), [(6, 1, 6), (12, 3, 10), law(9, 2, 8), law(30, 10, 21)])
def test_the_interval_lies_between_the_order_statistics_of_sign_test_tables(
    paired: Any, count: int, low: int, high: int
) -> None:
    values = np.random.default_rng(count).permutation(np.arange(1.0, count + 1))
    assert paired.change(values) == paired.Change(statistics.median(values), low, high)
    outside = 2 * sum(math.comb(count, below) for below in range(low)) / 2**count
    assert outside <= 1 - paired.CONFIDENCE


def test_too_few_pairs_give_no_interval(paired: Any) -> None:
    with pytest.raises(ValueError, match="5 pairs are too few for an interval of 95%, which takes at least 6; measure more"):
        paired.change([1.0] * 5)


@given(values=st.lists(finite, min_size=6, max_size=40))
def test_exchanging_old_and_new_inverts_the_interval(paired: Any, values: list[float]) -> None:
    found, turned = paired.change(values), paired.change([-value for value in values])
    assert found.low <= found.median <= found.high
    assert (-turned.high, -turned.median, -turned.low) == (found.low, found.median, found.high)


def test_noise_that_old_and_new_share_in_a_round_leaves_the_difference(paired: Any) -> None:
    machine = [1.0, 2.0, 50.0, 4.0]
    more, percent = paired.differences([(machine, [value * 1.01 for value in machine]), ([2.0], [1.5])])
    assert more == pytest.approx([0.03, -0.5])
    assert percent == pytest.approx([1.0, -25.0])


def test_a_round_without_its_pair_is_refused(paired: Any) -> None:
    with pytest.raises(ValueError, match="zip"):
        paired.differences([([1.0, 2.0], [1.0])])


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.2, 1.0, "met"), (0.2, 1.1, "not decided"), (1.0, 2.0, "not decided"), (1.1, 2.0, "MISSED"), (-3.0, -2.0, "met")],
)
def test_a_bound_is_met_or_missed_only_if_the_whole_interval_is(paired: Any, low: float, high: float, said: str) -> None:
    found = paired.Change((low + high) / 2, low, high)
    assert paired.verdict(found, paired.Bound(1), "us") == f"at most 1 us more: {said}"
    assert paired.verdict(found, paired.Bound(1, percent=True), "us") == f"at most 1 % more: {said}"


@pytest.mark.parametrize(("low", "said"), [(0.1, "MISSED"), (0.0, "none shown"), (-0.1, "none shown")])
def test_a_loss_counts_only_if_the_interval_shows_it(paired: Any, low: float, said: str) -> None:
    assert paired.verdict(paired.Change(0.5, low, 1.0), None, "s") == f"no loss: {said}"
