"""What of a machine's rates a clock goes by. Plans of memory follow it, so it is the same wherever the rates are."""

from __future__ import annotations

from typing import NamedTuple

from asynctile.schedule.rates import Rates


class Pace(NamedTuple):
    """Of the tier that operations run in. link_per_s: bytes each way to the tier below it."""

    flops_per_s: float
    memory_per_s: float
    link_per_s: float
    updated_per_s: float
    operation_s: float

    def operation(self, flops: int, nbytes: int) -> float:
        """Seconds of an operation on the device that does so much and reads or writes so many bytes."""
        return max(flops / self.flops_per_s, nbytes / self.memory_per_s) + self.operation_s


def pace_of(rates: Rates, *, has_link: bool) -> Pace:
    """Return the pace of the tier that operations run in. has_link: whether RAM is below that tier, or else a file."""
    link_per_s = min(rates.up_per_s, rates.down_per_s) if has_link else rates.disk_per_s
    return Pace(rates.flops_per_s, rates.memory_per_s, link_per_s, rates.updated_per_s, rates.operation_s)
