"""How fast a device and what is around it are, roughly. Plans of memory go by it, so it is the same for the same device."""

from __future__ import annotations

from typing import NamedTuple


class Pace(NamedTuple):
    """How fast a device and what is around it are, roughly: floating-point operations, bytes of its memory read or written,
    bytes over the link each way, and bytes that updates in RAM read or write, a second each; and seconds that an operation
    takes however small it is.
    """

    flops_per_s: float
    memory_per_s: float
    link_per_s: float
    updated_per_s: float
    operation_s: float

    def operation(self, flops: int, nbytes: int) -> float:
        """Seconds of an operation on the device that does so much and reads or writes so many bytes."""
        return max(flops / self.flops_per_s, nbytes / self.memory_per_s) + self.operation_s


#: A GPU like an H200 with tiles in bf16, and two cores over a link or a disk. What is made by them hardly depends on them.
GPU = Pace(flops_per_s=7e14, memory_per_s=4e12, link_per_s=5e10, updated_per_s=1.5e11, operation_s=3e-6)
CORES = Pace(flops_per_s=3e11, memory_per_s=2e10, link_per_s=5e8, updated_per_s=2e10, operation_s=1e-6)


def pace_of(device: str, link_rate: int | None) -> Pace:
    """That of the device called `device`, which need not be there. link_rate: to which its link is limited, if it is."""
    pace = GPU if device.partition(":")[0] == "cuda" else CORES
    return pace if link_rate is None else pace._replace(link_per_s=link_rate)
