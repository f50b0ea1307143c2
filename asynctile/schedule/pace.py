"""The pace: the part of a machine's rates that the clock of a plan uses.

Plans of memory depend on it, so they are the same wherever the rates are the same.
"""

from __future__ import annotations

from typing import NamedTuple

from asynctile.schedule.rates import Rates


class Pace(NamedTuple):
    """The pace of the tier in which operations run. link_per_s: bytes per second, each way, to the tier below it."""

    flops_per_s: float
    memory_per_s: float
    link_per_s: float
    updated_per_s: float
    operation_s: float

    def operation(self, flops: int, nbytes: int) -> float:
        """Return the seconds of an operation on the device that does `flops` and reads or writes `nbytes`."""
        return max(flops / self.flops_per_s, nbytes / self.memory_per_s) + self.operation_s


def pace_of(rates: Rates, *, has_link: bool) -> Pace:
    """Return the pace of the tier in which operations run. has_link: RAM is below that tier; otherwise a file is."""
    link_per_s = min(rates.up_per_s, rates.down_per_s) if has_link else rates.disk_per_s
    return Pace(rates.flops_per_s, rates.memory_per_s, link_per_s, rates.updated_per_s, rates.operation_s)
