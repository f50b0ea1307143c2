"""The CPU as a device: its memory is RAM, so there is no link and tiles are computed in place."""

from __future__ import annotations

from asynctile.device.workers import WorkerDevice


class CpuDevice(WorkerDevice):
    """Kernels in RAM, on one worker thread per core."""

    name = "cpu"
    has_link = False
