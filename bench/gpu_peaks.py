"""The speed limits of this GPU and its link, measured through PyTorch and CuPy: the bounds of all other results.

All data are random, because products of zeros run faster. Without a GPU the same functions measure PyTorch on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from gpu_common import seconds_of

#: Dense bf16 rates from datasheets, FLOP/s.
DATASHEET = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
MIB = 1 << 20


@dataclass(frozen=True)
class Place:
    """The device on which PyTorch computes, the same as the engine's. On a CPU it repeats less."""

    device: str

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def where(self) -> torch.device:
        return torch.device(self.device if self.on_gpu else "cpu")

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.where)

    def seconds(self, work: Callable[[], Any], repeats: int = 20) -> float:
        return seconds_of(work, self.synchronize, repeats if self.on_gpu else 2)

    def random(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
        return (scale * torch.randn(*shape, device=self.where)).to(dtype)


def dtype_of(precision: str) -> torch.dtype:
    """Return the dtype of the operands of matrix products."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def gemm_rate(place: Place, precision: str, n: int = 8192) -> float:
    """Return the FLOP/s of a large square product by PyTorch in "fp32", "tf32" or "bf16"."""
    n = n if place.on_gpu else 512
    a, b = (place.random(n, n, dtype=dtype_of(precision)) for _ in range(2))
    c = torch.empty_like(a)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        return 2.0 * n**3 / place.seconds(lambda: torch.mm(a, b, out=c), 3 if precision == "fp32" else 20)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def cupy_gemm_rate(place: Place, precision: str, n: int = 8192) -> float | None:
    """Return the same by CuPy; None where there is no GPU."""
    if not place.on_gpu:
        return None
    import cupy
    import ml_dtypes
    from cupy._core import _routines_linalg as linalg

    number = int(place.device.partition(":")[2] or 0)
    with cupy.cuda.Device(number):
        before = linalg.get_compute_type(cupy.dtype("float32"))
        linalg.set_compute_type(cupy.dtype("float32"), linalg.COMPUTE_TYPE_TF32 if precision == "tf32" else before)
        try:
            kind = ml_dtypes.bfloat16 if precision == "bf16" else cupy.float32
            a, b = (cupy.random.standard_normal((n, n), dtype=cupy.float32).astype(kind) for _ in range(2))
            c = cupy.empty_like(a)
            repeats = 3 if precision == "fp32" else 20
            return 2.0 * n**3 / seconds_of(lambda: cupy.matmul(a, b, out=c), cupy.cuda.Device(number).synchronize, repeats)
        finally:
            linalg.set_compute_type(cupy.dtype("float32"), before)
            cupy.get_default_memory_pool().free_all_blocks()


def copy_rate(place: Place, nbytes: int = 4096 * MIB) -> float:
    """Return the bytes a second, read and written together, of a copy within the device's memory."""
    nbytes = nbytes if place.on_gpu else 64 * MIB
    source, target = (torch.randint(0, 255, (nbytes,), dtype=torch.uint8, device=place.where) for _ in range(2))
    return 2 * nbytes / place.seconds(lambda: target.copy_(source))


@dataclass(frozen=True)
class LinkRates:
    """Bytes a second between pinned RAM and the device.

    up, down: each way alone. both: each way while both run.
    """

    up: float
    down: float
    both: float


def link_rates(place: Place, nbytes: int = 1024 * MIB, repeats: int = 4) -> LinkRates:
    """Measure plain copies by PyTorch, each of `nbytes` as a whole."""
    nbytes = nbytes if place.on_gpu else 16 * MIB
    # Draw on the device, which is a thousand times as fast: a CPU's generator takes seconds for a GiB.
    device = [torch.randint(0, 255, (nbytes,), dtype=torch.uint8, device=place.where) for _ in range(2)]
    host = [torch.empty(nbytes, dtype=torch.uint8, pin_memory=place.on_gpu).copy_(drawn) for drawn in device]
    up = place.seconds(lambda: device[0].copy_(host[0], non_blocking=True), repeats)
    down = place.seconds(lambda: host[1].copy_(device[1], non_blocking=True), repeats)
    if not place.on_gpu:
        return LinkRates(nbytes / up, nbytes / down, nbytes / max(up, down))
    streams = [torch.cuda.Stream(place.where) for _ in range(2)]

    def both() -> None:
        with torch.cuda.stream(streams[0]):
            device[0].copy_(host[0], non_blocking=True)
        with torch.cuda.stream(streams[1]):
            host[1].copy_(device[1], non_blocking=True)

    return LinkRates(nbytes / up, nbytes / down, nbytes / place.seconds(both, repeats))


def datasheet(gpu: str) -> float | None:
    """Return the dense bf16 FLOP/s from the datasheet of a GPU of this name; None for an unknown GPU."""
    return next((rate for name, rate in DATASHEET.items() if name in gpu), None)


def free(place: Place) -> None:
    """Release PyTorch's cached memory for other users."""
    if place.on_gpu:
        torch.cuda.synchronize(place.where)
        torch.cuda.empty_cache()
