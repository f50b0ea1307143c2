"""A plan of a training step before anything is allocated: the floor, what moves over the link, what bounds the step.

The numbers come from asynctile/simulate.py, which makes the decisions of a run; time is estimated from them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from asynctile.demand import measure
from asynctile.errors import BudgetError
from asynctile.layers.config import GPT2Config
from asynctile.layers.floor import floor_demand
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.simulate import simulate
from asynctile.storage.arena import Arena
from asynctile.storage.sizes import format_size, parse_size

#: A rough GEMM rate of one CPU core, float32.
FLOPS_PER_S = 200e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Bytes, operations and floating-point operations of one step in the steady state.

    floor_bytes: the smallest device_memory (on cpu: host_memory) that works. host_bytes: RAM that tiles take below
    the device. compute_s: the GEMMs at this machine's rough rate. link_s: the slower direction at link_rate, None
    without one. bound: what bounds the step, in words.
    """

    device: str
    tile: int
    parameters: int
    states_bytes: int
    floor_bytes: int
    floor_operation: str
    resident_bytes: int
    device_bytes: int | None
    device_peak_bytes: int
    host_bytes: int
    operations: int
    flops: int
    uploaded_bytes: int
    downloaded_bytes: int
    compute_s: float
    link_s: float | None
    bound: str

    def lines(self) -> list[tuple[str, str]]:
        """(what, value) for a table."""
        return [
            ("parameters", f"{self.parameters:,}"),
            ("states (weights and two moments)", format_size(self.states_bytes)),
            ("tile edge", str(self.tile)),
            ("floor", f"{format_size(self.floor_bytes)}, set by {self.floor_operation}"),
            ("all tiles resident", format_size(self.resident_bytes)),
            ("device memory", "no cap" if self.device_bytes is None else format_size(self.device_bytes)),
            ("host memory for tiles", format_size(self.host_bytes)),
            ("operations a step", f"{self.operations:,}"),
            ("GEMM work a step", f"{self.flops / 1e9:,.1f} GFLOP"),
            ("uploaded a step", format_size(self.uploaded_bytes)),
            ("downloaded a step", format_size(self.downloaded_bytes)),
            ("bound", self.bound),
        ]


def plan_step(
    config: GPT2Config,
    *,
    batch_size: int,
    seq_len: int,
    micro_batches: int = 1,
    recompute: bool = True,
    tile: int | None = None,
    device: str = "auto",
    device_memory: int | str | None = None,
    host_memory: int | str | None = None,
    prefetch: int = 2,
    link_rate: int | str | None = None,
    clip_norm: float | None = None,
) -> Plan:
    """Plan one training step. BudgetError if a cap is below the floor; ValueError for wrong numbers."""
    tiling = Tiling(config, tile)
    parameters = Parameters(config, tiling)
    rows = tiling.rows(batch_size, seq_len, micro_batches)
    program = record("step" if clip_norm is None else "step_clipped", parameters, rows, recompute=recompute)
    standing = list(parameters.states())
    demand = measure([program], standing)
    has_link = device not in ("auto", "cpu")
    cap = _size(device_memory if has_link else host_memory)
    flops = sum(operation.flops for operation in program.operations())
    compute_s = flops / (FLOPS_PER_S * len(os.sched_getaffinity(0)))
    uploaded = downloaded = 0
    floor = floor_demand(config, tiling.tile)
    if has_link:
        if cap is not None:
            floor.check(cap)
        traffic = simulate(program, standing, cap, prefetch)
        uploaded, downloaded = traffic.loaded_nbytes, traffic.written_back_nbytes
        device_peak, host = traffic.device_peak_nbytes, demand.resident_nbytes
        _check_host(host, _size(host_memory))
    else:
        Arena(cap, divided=False).check(demand)
        device_peak, host = 0, demand.resident_nbytes
    rate = _size(link_rate)
    link_s = None if rate is None else max(uploaded, downloaded) / rate
    return Plan(
        device="cpu" if device == "auto" else device,
        tile=tiling.tile,
        parameters=config.parameter_count,
        states_bytes=config.states_nbytes,
        floor_bytes=floor.floor_nbytes if has_link else demand.resident_nbytes,
        floor_operation=floor.what if has_link else "everything, which stays in RAM on cpu",
        resident_bytes=demand.resident_nbytes,
        device_bytes=cap,
        device_peak_bytes=device_peak,
        host_bytes=host,
        operations=sum(1 for _ in program.operations()),
        flops=flops,
        uploaded_bytes=uploaded,
        downloaded_bytes=downloaded,
        compute_s=compute_s,
        link_s=link_s,
        bound=_bound(compute_s, link_s),
    )


def _bound(compute_s: float, link_s: float | None) -> str:
    compute = f"compute, about {compute_s:.2f} s at {FLOPS_PER_S / 1e9:.0f} GFLOP/s a core"
    if link_s is None:
        return compute
    if link_s > compute_s:
        return f"the link, {link_s:.2f} s against about {compute_s:.2f} s of compute"
    return f"{compute}; the link takes {link_s:.2f} s beside it"


def _check_host(needed: int, cap: int | None) -> None:
    if cap is not None and needed > cap:
        raise BudgetError(
            f"host_memory of {format_size(cap)} is below the floor of {format_size(needed)} ({needed} bytes): every tile "
            "that is alive at once must find a place below the device; raise host_memory",
            floor=needed,
        )


def _size(value: int | str | None) -> int | None:
    return None if value is None else parse_size(value)
