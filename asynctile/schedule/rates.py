"""The rates of a device and its host: the one record behind all decisions about speed, and the rates assumed without it.

Pure. They decide how a step is arranged (layers/arrangement.py), where updates run (layers/update_placement.py), where tiles
stand (clock.py) and how long graphs are (pieces.py). No result depends on a rate; only moves and times do.
asynctile/measure/known.py measures rates and keeps them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

#: Every rate, and the time of an operation, lies between these.
LEAST, MOST = 1e-12, 1e24


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of a device and of its host, in bytes or floating-point operations per second.

    flops_per_s: matrix products on the whole device. memory_per_s: bytes of the device's memory read or written.
    up_per_s, down_per_s: bytes over the link between RAM and the device. updated_per_s: bytes of RAM that AdamW reads or writes
    on all cores together. copied_per_s: bytes that the cores copy. disk_per_s: bytes to or from a file.
    operation_s: the seconds that even the smallest operation takes.
    """

    flops_per_s: float
    memory_per_s: float
    up_per_s: float
    down_per_s: float
    updated_per_s: float
    copied_per_s: float
    disk_per_s: float
    operation_s: float

    def limited(self, link_rate: float | None) -> Rates:
        """Return these rates with the link limited to `link_rate` bytes per second each way; None: no limit."""
        return self if link_rate is None else replace(self, up_per_s=link_rate, down_per_s=link_rate)

    def on(self, devices: int) -> Rates:
        """Return the rates of so many devices together, over one host."""
        return replace(self, flops_per_s=self.flops_per_s * devices, memory_per_s=self.memory_per_s * devices,
                       up_per_s=self.up_per_s * devices, down_per_s=self.down_per_s * devices)  # fmt: skip

    def rounded(self) -> Rates:
        """Return these rates, each rounded to a power of the square root of two, so that repeated measurements mostly agree."""
        return Rates(**{name: 2.0 ** (round(2 * math.log2(value)) / 2) for name, value in asdict(self).items()})

    def to_json(self) -> dict[str, float]:
        """Return these rates as `from_json` reads them."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Any) -> Rates:
        """Return the rates that a file holds; ValueError unless all of them are there and are numbers from LEAST to MOST."""
        names = {field.name for field in fields(cls)}
        if not isinstance(found, dict) or found.keys() != names:
            raise ValueError(f"its rates are not exactly {', '.join(sorted(names))}")
        for name, value in found.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST <= value <= MOST:
                raise ValueError(f"its rate {name} is not a number from {LEAST} to {MOST}")
        return cls(**{name: float(value) for name, value in found.items()})


#: FLOP/s of matrix products on a GPU like an H200, by precision.
_GPU_FLOPS_PER_S = {"fp32": 5e13, "tf32": 3.9e14, "bf16": 7.8e14}
#: A GPU like an H200 in bf16, and its host.
_GPU = Rates(
    flops_per_s=_GPU_FLOPS_PER_S["bf16"], memory_per_s=4e12, up_per_s=5e10, down_per_s=5e10, updated_per_s=4e10,
    copied_per_s=1.2e10, disk_per_s=4e9, operation_s=3e-6,
)  # fmt: skip
#: Two CPU cores, which also do the copies of an emulated link.
CORES = Rates(
    flops_per_s=2e11, memory_per_s=2e10, up_per_s=1.2e10, down_per_s=1.2e10, updated_per_s=2e10,
    copied_per_s=1.2e10, disk_per_s=2e9, operation_s=1e-6,
)  # fmt: skip


def assumed(device: str, precision: str = "fp32") -> Rates:
    """Return rough rates for the kind of device that `device` names; the device need not exist."""
    if device.partition(":")[0] != "cuda":
        return CORES
    return replace(_GPU, flops_per_s=_GPU_FLOPS_PER_S[precision])
