"""Two versions measured in pairs: how much more the new one takes, and within which interval.

Pure numbers. Who measures is bench/against.py.

The interval is the distribution-free one of a median, between two order statistics of the paired differences (the sign test
turned round: Conover, Practical Nonparametric Statistics, 3rd ed., 3.2; David and Nagaraja, Order Statistics, 3rd ed., 7.1), as
`scipy.stats.quantile_test` gives it. It asks of the differences only that they are independent: a bootstrap of a median of so
few values covers less than it says.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import quantile_test

CONFIDENCE = 0.95
#: With fewer pairs no interval covers the median with that confidence: 1 - 2 / 2**5 is 0.94.
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
    """The median of differences with its interval; ValueError for fewer than FEWEST."""
    if len(values) < FEWEST:
        raise ValueError(
            f"{len(values)} pairs give no interval of {CONFIDENCE:.0%}, which takes at least {FEWEST}; measure more"
        )
    found = quantile_test(values, p=0.5).confidence_interval(CONFIDENCE)
    return Change(statistics.median(values), float(found.low), float(found.high))


def differences(starts: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[list[float], list[float]]:
    """One value a start: how much more the new takes, in the unit measured, and in percent of the old.

    starts: for each its rounds, old and new, in pairs; the median of their differences stands for the start.
    """
    more, percent = [], []
    for old, new in starts:
        pairs = list(zip(old, new, strict=True))
        more.append(statistics.median(after - before for before, after in pairs))
        percent.append(statistics.median(100 * (after - before) / before for before, after in pairs))
    return more, percent


def verdict(found: Change, bound: Bound | None, unit: str) -> str:
    """What the interval says of a bound, or without one whether there is a loss."""
    if bound is None:
        return "no loss: " + ("MISSED" if found.low > 0 else "none shown")
    said = "met" if found.high <= bound.most else "MISSED" if found.low > bound.most else "not decided"
    return f"at most {bound.most:g} {'%' if bound.percent else unit} more: {said}"
