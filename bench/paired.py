"""Statistics of two versions measured in pairs: how much more the new one takes, with an interval.

Pure numbers; bench/against.py measures.

The interval is the distribution-free one of a median, between two order statistics of the paired differences (the sign test
inverted: Conover, Practical Nonparametric Statistics, 3rd ed., 3.2; David and Nagaraja, Order Statistics, 3rd ed., 7.1), as
`scipy.stats.quantile_test` gives it. It assumes only that the differences are independent. A bootstrap of a median of so few
values covers less than it claims.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import quantile_test

CONFIDENCE = 0.95
#: With fewer pairs no interval covers the median at that confidence: 1 - 2 / 2**5 is 0.94.
FEWEST = 6


@dataclass(frozen=True)
class Change:
    """A median of paired differences, and its interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Bound:
    """How much more the new version may take: in the unit measured, or in percent of the old."""

    most: float
    percent: bool = False


def change(values: Sequence[float]) -> Change:
    """Return the median of differences with its interval. Raises ValueError for fewer than FEWEST values."""
    if len(values) < FEWEST:
        raise ValueError(
            f"{len(values)} pairs are too few for an interval of {CONFIDENCE:.0%}, which takes at least {FEWEST}; measure more"
        )
    found = quantile_test(values, p=0.5).confidence_interval(CONFIDENCE)
    return Change(statistics.median(values), float(found.low), float(found.high))


def differences(starts: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[list[float], list[float]]:
    """Return one value per start: how much more the new version takes, in the unit measured and in percent of the old.

    starts: for each start its rounds of old and of new, in pairs. The median of their differences stands for the start.
    """
    more, percent = [], []
    for old, new in starts:
        pairs = list(zip(old, new, strict=True))
        more.append(statistics.median(after - before for before, after in pairs))
        percent.append(statistics.median(100 * (after - before) / before for before, after in pairs))
    return more, percent


def verdict(found: Change, bound: Bound | None, unit: str) -> str:
    """Return the interval's verdict on a bound, or without a bound whether it shows a loss."""
    if bound is None:
        return "no loss: " + ("MISSED" if found.low > 0 else "none shown")
    said = "met" if found.high <= bound.most else "MISSED" if found.low > bound.most else "not decided"
    return f"at most {bound.most:g} {'%' if bound.percent else unit} more: {said}"
