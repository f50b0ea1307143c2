"""Devices: where tiles are computed. One interface (base.py) for all kinds; nothing above knows which one it has.

cpu.py: NumPy and Numba in RAM. emulated.py: the same kernels in a bounded arena of their own, behind a link.
"""

from __future__ import annotations

from asynctile.device.base import Device
from asynctile.device.cpu import CpuDevice
from asynctile.device.emulated import EmulatedDevice
from asynctile.errors import DeviceError

__all__ = ["CpuDevice", "Device", "EmulatedDevice", "open_device"]


def open_device(name: str, *, link_rate: int | None) -> Device:
    """The device called `name` ("auto", "cpu", "emulated"); DeviceError for any other.

    link_rate: bytes a second each way, for "emulated" only; ValueError elsewhere.
    """
    kind = "cpu" if name == "auto" else name
    if kind.partition(":")[0] == "cuda":
        raise DeviceError(f"device {name!r} is not built yet: choose 'cpu' or 'emulated'")
    if kind not in ("cpu", "emulated"):
        raise DeviceError(f"unknown device {name!r}: expected 'auto', 'cpu', 'emulated' or 'cuda:N'")
    if kind == "emulated":
        return EmulatedDevice(link_rate)
    if link_rate is not None:
        raise ValueError(f"link_rate is for device='emulated', not {name!r}, which has no link; leave it out")
    return CpuDevice()
