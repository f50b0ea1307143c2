"""The GPUs of this machine in a machine file: their kernels, memory and links, measured by their own events.

measured.py writes the rest of the file. No tile of a model is there, and no step runs. Nobody has run this on a GPU yet: its
tests run it over the driver of threads (tests/cuda).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from asynctile.cli.terminal import complain
from asynctile.device import open_devices
from asynctile.device.cuda import CudaDevice
from asynctile.errors import DeviceError
from asynctile.layers import GPT2Config
from asynctile.layers.machine import Machine
from asynctile.layers.verbs import verbs_at
from asynctile.measure.calls import Call, call_of
from asynctile.measure.gpu_times import GpuTimes
from asynctile.ops import gemm
from asynctile.program.operation import Operation
from asynctile.program.precision import compute_dtype
from asynctile.storage.counts import counted
from asynctile.storage.tile import Tile

__all__ = ["Verbs", "measured_gpus"]

#: Edges of tiles at which kernels are measured: those of small and of large models on a GPU.
EDGES = (1024, 4096)
#: Columns of a head, and the most tokens of a sequence.
HEAD, LENGTH = 128, 1024
#: A call lasts at least this share of what was measured, without the time that every operation takes.
LEAST_SHARE = 0.1

#: Rates of kernels, by the edge of tiles and by kernel.
Verbs = Mapping[int, Mapping[str, float]]


def measured_gpus(name: str, precision: str) -> tuple[list[str], Verbs]:
    """Return the lines about these GPUs and their links, and the rates of kernels on one of them.

    DeviceError if one is not there, cannot compute in this precision, or fails; BudgetError if other programs have its memory.
    """
    with ExitStack() as opened:
        complain("asynctile info: opening the GPU and compiling its kernels ...")
        devices = _opened(name, precision, opened)
        try:
            return _measured(devices, precision)
        except RuntimeError as error:  # the driver's own
            raise DeviceError(f"{name} cannot be measured: {error}") from error


def _opened(name: str, precision: str, opened: ExitStack) -> list[CudaDevice]:
    devices = [device for device in open_devices(name, precision=precision) if isinstance(device, CudaDevice)]
    for device in devices:
        opened.callback(device.close)
    for device in devices:
        device.start()
        device.warm(None)
    return devices


def _measured(devices: Sequence[CudaDevice], precision: str) -> tuple[list[str], Verbs]:
    first, memory = devices[0], min(device.budget(None) for device in devices)
    times = GpuTimes(first)
    complain("asynctile info: measuring launches and copies ...")
    operation_s, graph_s = times.operation_s(), times.graph_s()
    lines = [
        f'title = "{first.driver.title}, {counted(len(devices), "GPU")}"',
        "",
        "[devices]",
        'kind = "cuda"',
        f"count = {len(devices)}",
        f'memory = "{memory}B"  # free now, without what tiles leave to the driver',
        f'memory_per_s = "{times.memory_per_s():.0f}B"  # copies within a GPU, read and written',
        f"operation_s = {operation_s:.3e}  # the smallest kernel in a graph; a graph takes {graph_s:.1e} s more",
    ]
    link = ["", "[link]", f'up_per_s = "{times.up_per_s():.0f}B"', f'down_per_s = "{times.down_per_s():.0f}B"']
    if len(devices) > 1:
        link += ["", "[peers]", f'per_s = "{times.passed_per_s(devices[1]):.0f}B"']
    product = _product(max(EDGES), precision)
    flops_per_s = product.flops / times.calls_s([product])[call_of(product)]
    lines.append(f"flops_per_s = {{ {precision} = {flops_per_s:.3e} }}  # products of {max(EDGES)} x {max(EDGES)}")
    machine, verbs = Machine(device=first.name, precision=precision), {}

    def seconds(operations: Sequence[Operation]) -> dict[Call, float]:
        """Return the seconds of calls without the time that the clock adds to every operation."""
        return {call: max(spent - operation_s, LEAST_SHARE * spent) for call, spent in times.calls_s(operations).items()}

    for edge in EDGES:
        complain(f"asynctile info: measuring every kernel at tiles of {edge} ...")
        verbs[edge] = verbs_at(edge, _shape(edge), machine, seconds)
    return [*lines, *link], verbs


def _product(edge: int, precision: str) -> Operation:
    a, b, c = (Tile(name, (edge, edge), compute_dtype(precision)) for name in "abc")
    return gemm(a, b, c)


def _shape(edge: int) -> GPT2Config:
    """Return a model whose tiles are whole ones of `edge`."""
    length = min(edge, LENGTH)
    return GPT2Config(n_layer=1, n_head=max(edge // HEAD, 1), n_embd=edge, block_size=length, vocab_size=2 * edge)
