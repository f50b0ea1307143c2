"""A plan of a training step before anything is allocated: the floor, the bytes over the link, and the time of the step.

asynctile/measure/simulate.py supplies the numbers by making the decisions of a run, and the virtual clock
(asynctile/measure/virtual.py) estimates times by carrying out the same schedule. The device need not exist. Rates that are not
given are assumed (asynctile/schedule/rates.py), and the plan says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any

from asynctile.layers.config import STATES_NBYTES, WEIGHT_NBYTES, Config
from asynctile.layers.machine import Machine, Work, size
from asynctile.layers.parameters import Parameters
from asynctile.layers.planned_step import PlannedStep, planned_step
from asynctile.layers.update_placement import updates_of
from asynctile.measure.simulate import Traffic, simulate
from asynctile.measure.virtual import Resource, Timeline
from asynctile.program.operation import HOST
from asynctile.schedule.schedule import Schedule
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import ALIGNMENT, Demand
from asynctile.storage.sizes import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Bytes, operations and floating-point operations of one step in the steady state.

    Memory, in bytes:

    - floor_bytes: the smallest device_memory that works (on cpu: host_memory). floor_operation: the operation that sets it.
    - resident_bytes: all tiles at once, when nothing is evicted.
    - host_bytes: RAM that tiles take, beside the device or as the device.
    - spill_bytes: the smallest spill_limit, 0 if RAM suffices.
    - device_bytes: the cap on the memory in which tiles are computed, None for no cap.
    - states_bytes: the weights, and the moments of what is trained. frozen_bytes: the weights of what is not.
    - checkpoint_bytes: the tensors of a checkpoint. That of an adapter does not hold its base.
    - copies_bytes: the bf16 copies of the weights, in addition to the states; 0 in other precisions. Not traffic of a step.
    - comes_and_goes: whether tiles enter and leave the capped memory during a step. unused_bytes: the part of that cap that no
      tile ever occupies. copied_bytes: what a step moves within that memory to make room.

    Work and time of a step:

    - parameters: numbers of the model, with those of adapters. trained: how many of them are trained.
    - row_tokens: the most rows of a row tile. passes: in how many passes the batch goes through each layer.
    - copies: how many copies a step makes, over the link, for results on the host or within any memory.
    - layers: blocks of the model. kept: how many parts of the step keep their activations, the head first, then the blocks from
      the last one on. "auto" is resolved as in a run under the same caps.
    - updates: weight tiles. updates_on_host: how many of them are updated on the host. "auto" is resolved as in a run with the
      same rates.
    - devices: how many share the replicas. Bytes and operations are those of all devices; floors, caps and peaks of one.
    - nodes: how many machines share them, each with so many devices. All figures but the batch's are those of one, node 0.
      sent_bytes, received_bytes: to and from the others. step_s then counts the network, and no wait for another node.
    - step_s: the step by the virtual clock (asynctile/measure/virtual.py). tokens_per_s: of the batch. busy: by resource,
      the share of that time in which it is busy, on the device where it is busiest, the largest first.
    - rates: the rates behind these, in words.
    """

    device: str
    devices: int
    nodes: int
    precision: str
    tile: int
    row_tokens: int
    parameters: int
    trained: int
    states_bytes: int
    frozen_bytes: int
    checkpoint_bytes: int
    copies_bytes: int
    floor_bytes: int
    floor_operation: str
    resident_bytes: int
    device_bytes: int | None
    device_peak_bytes: int
    comes_and_goes: bool
    unused_bytes: int
    copied_bytes: int
    copies: int
    host_bytes: int
    spill_bytes: int
    operations: int
    passes: int
    layers: int
    kept: int
    updates: int
    updates_on_host: int
    flops: int
    uploaded_bytes: int
    downloaded_bytes: int
    passed_bytes: int
    sent_bytes: int
    received_bytes: int
    spill_read_bytes: int
    spill_written_bytes: int
    step_s: float
    tokens_per_s: float
    busy: Mapping[str, float]
    rates: str

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for other programs, with `bound`, the name of the busiest part."""
        return {item.name: getattr(self, item.name) for item in fields(self)} | {"bound": next(iter(self.busy))}

    def lines(self) -> list[tuple[str, str]]:
        """Return the plan as (name, value) rows of a table."""
        return [
            ("bound", _bound(self.busy)),
            ("rates", self.rates),
            *self._sizes(),
            *([("copies of matrices in bf16", format_size(self.copies_bytes))] if self.copies_bytes else []),
            ("precision", self.precision),
            ("tile edge", f"{self.tile}, row tiles of up to {self.row_tokens:,} tokens"),
            ("floor", f"{format_size(self.floor_bytes)}, set by {self.floor_operation}"),
            ("all tiles resident", format_size(self.resident_bytes)),
            ("device memory", "no cap" if self.device_bytes is None else format_size(self.device_bytes)),
            *self._cap(),
            ("host memory for tiles", format_size(self.host_bytes)),
            ("spill folder", "unused" if not self.spill_bytes else f"{format_size(self.spill_bytes)}, the least --spill-limit"),
            ("operations a step", f"{self.operations:,}"),
            ("passes through a layer", f"{self.passes:,}"),
            ("activations kept", self._kept()),
            ("weight tiles", f"{self.updates:,}, {self.updates_on_host:,} of them updated on the host"),
            ("GEMM work a step", f"{self.flops / 1e9:,.1f} GFLOP"),
            *([("devices", f"{self.devices}, which share the replicas; bytes are those of all")] if self.devices > 1 else []),
            ("uploaded a step", format_size(self.uploaded_bytes)),
            ("downloaded a step", format_size(self.downloaded_bytes)),
            *([("passed between devices a step", format_size(self.passed_bytes))] if self.devices > 1 else []),
            *self._network(),
            *self._disk(),
        ]

    def _sizes(self) -> list[tuple[str, str]]:
        states, checkpoint = format_size(self.states_bytes), format_size(self.checkpoint_bytes)
        of_checkpoint = "as large as a checkpoint" if states == checkpoint else f"a checkpoint takes {checkpoint}"
        rows = [("parameters", f"{self.parameters:,}"), ("states (weights and two moments)", f"{states}, {of_checkpoint}")]
        if self.trained == self.parameters:
            return rows
        return [*rows, ("trained", f"{self.trained:,} of the parameters"), ("frozen weights", format_size(self.frozen_bytes))]

    def _kept(self) -> str:
        return f"of the head and {self.kept - 1} of {self.layers} layers" if self.kept else "none, recomputed in backward"

    def _cap(self) -> list[tuple[str, str]]:
        if not self.comes_and_goes:
            return []
        copied = f", {format_size(self.copied_bytes)} copied within it a step" if self.copied_bytes else ""
        return [("placement in that memory", f"at any byte, {format_size(self.unused_bytes)} unused{copied}")]

    def _network(self) -> list[tuple[str, str]]:
        if self.nodes == 1:
            return []
        return [
            ("nodes", f"{self.nodes}, which share the replicas; figures are those of node 0"),
            ("sent to other nodes a step", format_size(self.sent_bytes)),
            ("received from other nodes a step", format_size(self.received_bytes)),
        ]

    def _disk(self) -> list[tuple[str, str]]:
        if not self.spill_bytes:
            return []
        compute_s = self.step_s * self.busy[Resource.COMPUTE]
        rate = round((self.spill_read_bytes + self.spill_written_bytes) / compute_s)
        return [
            ("read from the spill folder a step", format_size(self.spill_read_bytes)),
            ("written to the spill folder a step", format_size(self.spill_written_bytes)),
            ("disk rate that compute hides", f"{format_size(rate)} a second or more, reads and writes together"),
        ]


def plan_step(
    config: Config,
    work: Work,
    machine: Machine,
    stage: Callable[[str], object] = lambda text: None,
    keep: Callable[[Schedule, Timeline], object] = lambda schedule, clock: None,
) -> Plan:
    """Plan one training step.

    stage: called with a description of each part of the work as it begins. A large step takes minutes. keep: called with the
    schedule of the step, and when the virtual clock ran each entry. BudgetError if a cap is below the floor; ValueError for
    wrong numbers.
    """
    step = planned_step(config, work, machine, stage)
    program = step.program
    flops = sum(operation.flops for operation in program.operations())
    host = machine.host_nbytes
    cap = machine.cap(host)
    in_ram = step.demand.rounded(PAGE if machine.spill else ALIGNMENT)
    updates = updates_of(program)
    stage(f"placing the tiles of {len(program):,} operations")
    traffic = traffic_of(step, machine)
    stage("estimating the time of a step")
    timeline = machine.costs(step.parameters.tiling.tile).timeline(traffic.schedule)
    keep(traffic.schedule, timeline)
    return Plan(
        device=machine.device,
        devices=program.devices,
        nodes=machine.nodes,
        precision=machine.precision,
        tile=step.parameters.tiling.tile,
        row_tokens=step.parameters.tiling.row_tokens,
        **_sizes(step.parameters),
        copies_bytes=sum(copy.nbytes for parameter in step.parameters.values() for copy in parameter.copies.values()),
        floor_bytes=step.floor_bytes,
        floor_operation=step.floor_operation,
        resident_bytes=in_ram.resident_nbytes,
        device_bytes=cap,
        device_peak_bytes=traffic.device_peak_nbytes,
        comes_and_goes=traffic.divided,
        unused_bytes=traffic.unused_nbytes,
        copied_bytes=traffic.copied_nbytes,
        copies=traffic.copies,
        host_bytes=_host_bytes(in_ram, host, machine.spill),
        spill_bytes=traffic.spill_needed_nbytes,
        operations=sum(1 for _ in program.operations()),
        passes=len(step.rows.passes),
        layers=config.n_layer,
        kept=step.kept,
        updates=len(updates),
        updates_on_host=sum(operation.device == HOST for operation in updates),
        flops=flops,
        uploaded_bytes=traffic.uploaded_nbytes,
        downloaded_bytes=traffic.downloaded_nbytes,
        passed_bytes=traffic.passed_nbytes,
        sent_bytes=traffic.sent_nbytes,
        received_bytes=traffic.received_nbytes,
        spill_read_bytes=traffic.spill_read_nbytes,
        spill_written_bytes=traffic.spill_written_nbytes,
        step_s=timeline.seconds,
        tokens_per_s=work.batch_size * work.seq_len / timeline.seconds,
        busy=timeline.shares(),
        rates=_rates(machine),
    )


def traffic_of(step: PlannedStep, machine: Machine) -> Traffic:
    """Return the traffic of a step on its machine, with its schedule. BudgetError if a cap is too small."""
    host = machine.host_nbytes
    return simulate(
        step.program,
        step.standing,
        demand=step.demand,
        device=machine.device,
        grain=machine.grain,
        device_memory=machine.cap(host) if machine.has_link else None,
        host_memory=host,
        spill=machine.spill,
        spill_limit=size(machine.spill_limit),
        prefetch=machine.prefetch,
        rates=machine.rates,
    )


def _sizes(parameters: Parameters) -> dict[str, int]:
    """Return the entries of a plan that say how large the model, its trained part and a checkpoint are."""
    trained, total = parameters.tuning.counts(parameters.config)
    frozen = (tile.nbytes for item in parameters.values() if not item.trains for tile in item.weights.values())
    in_checkpoint = parameters.values() if parameters.lora is None else parameters.adapters()
    moments = (STATES_NBYTES - WEIGHT_NBYTES) * trained
    return {
        "parameters": total,
        "trained": trained,
        "states_bytes": parameters.states_nbytes,
        "frozen_bytes": sum(frozen),
        "checkpoint_bytes": WEIGHT_NBYTES * sum(prod(item.shape) for item in in_checkpoint) + moments,
    }


def _bound(busy: Mapping[str, float]) -> str:
    """Return what is busiest, and whatever comes close to it."""
    (first, share), *others = busy.items()
    beside = ", ".join(f"{what} {part:.0%}" for what, part in others if part >= 0.01)
    return f"{first}, busy {share:.0%} of the time" + (f"; {beside}" if beside else "")


def _rates(machine: Machine) -> str:
    assumed = "an assumed " if machine.measured is None else ""
    products = "" if machine.gemm_rate is not None else assumed
    network = ""
    if machine.nodes > 1:
        between = "an assumed " if machine.sent_per_s is None else ""
        network = f", the network at {between}{machine.network_per_s * 8e-9:.3g} Gbit/s each way"
    if not machine.is_gpu:
        link = "" if machine.link_rate is None else f", the link at {machine.rates.up_per_s / 1e9:.3g} GB/s each way"
        return f"products at {products}{machine.flops_per_s / machine.cores / 1e9:.0f} GFLOP/s a core{link}{network}"
    return (f"products at {products}{machine.flops_per_s / 1e12:.0f} TFLOP/s{' on each GPU' if machine.devices > 1 else ''}, "
            f"the link at {assumed}{machine.rates.up_per_s / 1e9:.0f} GB/s each way{network}")


def _host_bytes(demand: Demand, cap: int | None, spill: bool) -> int:
    """Return the RAM that tiles take: all of them, or the cap if the rest goes to disk."""
    return min(demand.resident_nbytes, cap) if spill and cap is not None else demand.resident_nbytes
