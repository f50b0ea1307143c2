"""The CPU as a device: RAM is its memory, so there is no link; tiles are computed where they are."""

from __future__ import annotations

from asynctile.device.workers import WorkerDevice


class CpuDevice(WorkerDevice):
    """Kernels on one worker thread a core, in RAM."""

    name = "cpu"
    has_link = False
