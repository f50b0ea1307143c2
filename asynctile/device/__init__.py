"""Devices that compute tiles. All kinds share one interface (base.py), so the layers above never ask which kind they have.

cpu.py runs NumPy and Numba in RAM. emulated.py runs the same kernels in a bounded arena of its own, behind a link. cuda.py is a
GPU.
"""

from __future__ import annotations

import re

from asynctile.device.base import Device
from asynctile.device.cpu import CpuDevice
from asynctile.device.cuda import CudaDevice
from asynctile.device.cupy_driver import gpu_count, gpu_title, open_driver
from asynctile.device.emulated import EmulatedDevice
from asynctile.errors import DeviceError
from asynctile.program.precision import check_precision

__all__ = ["CpuDevice", "CudaDevice", "Device", "EmulatedDevice", "gpu_title", "open_device", "resolved"]


def resolved(name: str) -> str:
    """Return the device that "auto" stands for on this machine, and any other name unchanged."""
    if name != "auto":
        return name
    return "cuda:0" if gpu_count() else "cpu"


def open_device(name: str, *, link_rate: int | None = None, precision: str = "fp32") -> Device:
    """Open the device called `name`: "auto", "cpu", "emulated" or "cuda:N".

    "auto" is the first GPU, or the CPU where there is none. link_rate: bytes a second each way, for "emulated" only. precision:
    "fp32", or on a GPU also "tf32" and "bf16".

    Raises DeviceError if the device is not there, and ValueError if another device is given a link_rate.
    """
    kind = resolved(name)
    if not re.fullmatch("cpu|emulated|cuda(:[0-9]+)?", kind):
        raise DeviceError(f"unknown device {name!r}: expected 'auto', 'cpu', 'emulated' or 'cuda:N'")
    if link_rate is not None and kind != "emulated":
        raise ValueError(f"link_rate works only with device='emulated', not with {name!r}; leave it out")
    check_precision(precision, kind)
    if kind.startswith("cuda"):
        return CudaDevice(open_driver(kind), precision)
    return EmulatedDevice(link_rate) if kind == "emulated" else CpuDevice()
