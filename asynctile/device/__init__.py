"""Devices that compute tiles. All kinds share one interface (base.py), so the layers above never ask which kind they have.

cpu.py runs NumPy and Numba in RAM. emulated.py runs the same kernels in a bounded arena of its own, behind a link. cuda.py is a
GPU.
"""

from __future__ import annotations

from contextlib import ExitStack

from asynctile.device.base import Device
from asynctile.device.cpu import CpuDevice
from asynctile.device.cuda import CudaDevice
from asynctile.device.cupy_driver import gpu_count, gpu_title, open_driver
from asynctile.device.emulated import EmulatedDevice
from asynctile.device.gpus import Gpus
from asynctile.device.names import ALL_GPUS, AUTO, names_of
from asynctile.device.workers import Siblings
from asynctile.program.precision import check_precision

__all__ = ["CpuDevice", "CudaDevice", "Device", "EmulatedDevice", "gpu_title", "open_device", "open_devices", "resolved"]


def resolved(name: str) -> str:
    """Return the devices that "auto" and "cuda:all" stand for on this machine, and any other name unchanged."""
    if name == ALL_GPUS:
        return f"cuda:0-{gpu_count() - 1}" if gpu_count() > 1 else "cuda:0"
    if name != AUTO:
        return name
    return "cuda:0" if gpu_count() else "cpu"


def open_devices(
    name: str, *, link_rate: int | None = None, peer_rate: int | None = None, precision: str = "fp32"
) -> tuple[Device, ...]:
    """Open the devices that `name` names (names.py), all of them or none.

    "auto" is the first GPU, or the CPU where there is none. link_rate: bytes a second each way between RAM and each device, for
    "emulated" only. peer_rate: bytes a second that each device receives from the others, for several emulated ones only.
    precision: "fp32", or on a GPU also "tf32" and "bf16".

    Raises DeviceError if a device is not there or GPUs are unlike, and ValueError for a wrong name and if other devices are
    given a rate.
    """
    names = names_of(resolved(name))
    if link_rate is not None and names[0] != "emulated":
        raise ValueError(f"link_rate works only with device='emulated', not with {name!r}; leave it out")
    if peer_rate is not None and (names[0] != "emulated" or len(names) == 1):
        raise ValueError(f"peer_rate works only with several emulated devices, not with {name!r}; leave it out")
    check_precision(precision, names[0])
    siblings, gpus, opened = Siblings(len(names)), Gpus(len(names)), list[Device]()
    with ExitStack() as undo:
        for number, one in enumerate(names):
            if one.startswith("cuda"):
                device: Device = CudaDevice(open_driver(one), precision, gpus, number)
            elif one == "emulated":
                device = EmulatedDevice(link_rate, siblings=siblings, number=number, peer_rate=peer_rate)
            else:
                device = CpuDevice()
            undo.callback(device.close)
            opened.append(device)
        undo.pop_all()
    return tuple(opened)


def open_device(name: str, *, precision: str = "fp32") -> Device:
    """Do the same as `open_devices` with the name of one device."""
    (device,) = open_devices(name, precision=precision)
    return device
