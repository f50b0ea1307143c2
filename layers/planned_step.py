"""The step that a run makes under given caps, before anything is allocated: its program, and what that asks of the tiers.

Covers `planned_step`, which refuses caps below the floor of any step, and `planned_steps` for several nodes. plan.py counts the
traffic of the step, a run gives it to an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from asynctile.layers.activations import Activations, kept_if, sizes_of
from asynctile.layers.arrangement import Recorded, Surroundings, agreed, arrange
from asynctile.layers.carriers import homes_of, table
from asynctile.layers.config import Config
from asynctile.layers.floor import floor_demand
from asynctile.layers.layout import shapes
from asynctile.layers.machine import Machine, Work
from asynctile.layers.node_updates import ALL, NONE, tiles_on_host, wish_for
from asynctile.layers.parameters import Parameters
from asynctile.layers.rows import Rows
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.layers.tuning import Tuning
from asynctile.layers.update_placement import NOWHERE, tiles_to_update_on_host, updates_of
from asynctile.layers.weight_dtype import STORED
from asynctile.program.needs import demand_of
from asynctile.program.parts import parts_of
from asynctile.program.program import Program
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import Demand
from asynctile.storage.tile import Tile


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step, not yet run, or the part of one of several nodes.

    demand: of its program, with the `standing` tiles of the model. rows: in their passes. kept: how many parts keep their
    activations. floor_bytes, floor_operation: as in Plan.
    """

    program: Program
    demand: Demand
    parameters: Parameters
    standing: list[Tile]
    rows: Rows
    kept: int
    floor_bytes: int
    floor_operation: str


def planned_step(
    config: Config, work: Work, machine: Machine, stage: Callable[[str], object] = lambda text: None
) -> PlannedStep:
    """Return the step that a run makes; of several nodes, the part of node 0 if all choose the arrangement that suits it best.

    stage: called with a description of the work as it begins. BudgetError if a tier that tiles can leave has a cap below the
    floor; ValueError for wrong numbers.
    """
    return planned_steps(config, work, machine, [0], stage)[0]


def planned_steps(
    config: Config, work: Work, machine: Machine, nodes: Sequence[int], stage: Callable[[str], object] = lambda text: None
) -> list[PlannedStep]:
    """Return the parts of `nodes` of a step, which agree on one arrangement. Otherwise as `planned_step`."""
    tiling = Tiling(config, work.tile, machine.grain)
    # First, because this refuses a batch that is too large.
    rows = tiling.rows(work.batch_size, work.seq_len, work.micro_batches, work.replicas)
    devices = machine.devices * machine.nodes
    carriers = table(work.replicas, devices)
    work.tuning.check(config)
    stored = frozenset(name for name, shape in shapes(config) if len(shape) == 2) if work.weights == STORED else frozenset()
    work.tuning.check_stored(config, stored, "the model")
    floor = _floor(config, tiling, machine, work.tuning, stored)
    stage("choosing how many passes rows take and which activations are kept")
    parameters = Parameters(config, tiling, machine.precision, work.tuning, stored)
    homes = homes_of(parameters, machine.nodes, machine.devices)
    standing = [[tile for tile in parameters.states() if homes.get(tile, node) == node] for node in nodes]
    share = rows.on_one(devices, tiling.row_tokens)
    recorded = Recorded(work.kind, parameters)
    arranged = agreed(
        arrange(recorded, share, _around(machine, work, own), precision=machine.precision, recompute=work.recompute)
        for own in standing
    )
    least = None
    if not (machine.has_link or machine.spill):
        least = Activations(work.kind, config, tiling, share, machine.precision, work.tuning, stored).counts(
            kept_if(work.recompute is not False, config)
        )
    rows, kept = rows.in_passes(arranged.passes), arranged.kept

    def updating(on_host: frozenset[Tile]) -> Program:
        return record(work.kind, parameters, rows, kept=kept, on_host=on_host, carriers=carriers, nodes=machine.nodes)

    if machine.nodes == 1:
        placed = [_placed(partial(recorded.program, rows, kept), standing[0], work, machine, updating)]
    else:
        placed = _placed_on_nodes(dict(zip(nodes, standing, strict=True)), parameters, work, machine, updating)
    found = []
    for (program, demand), own in zip(placed, standing, strict=True):
        floor_bytes, floor_operation = floor.floor_nbytes, floor.what
        if least is not None:
            floor_bytes = machine.rooms[-1].nbytes_of(sizes_of(own) + least)
            floor_operation = "all tiles, which stay in RAM on cpu"
        found.append(PlannedStep(program=program, demand=demand, parameters=parameters, standing=own, rows=rows, kept=kept,
                                 floor_bytes=floor_bytes, floor_operation=floor_operation))  # fmt: skip
    return found


def _floor(config: Config, tiling: Tiling, machine: Machine, tuning: Tuning, stored: frozenset[str]) -> Demand:
    """Return the demand of the most demanding operation. BudgetError if a tier that tiles can leave has a smaller cap."""
    host = machine.host_nbytes
    cap = machine.cap(host)
    demand = floor_demand(config, tiling.tile, machine.grain, machine.precision, tuning, stored)
    floor = demand.rounded(machine.grain.alignment)
    if machine.spill and machine.has_link and host is not None:
        floor.rounded(PAGE).passing().check(host, "host_memory")
    if machine.spill and not machine.has_link:
        floor = floor.rounded(PAGE)
    if (machine.has_link or machine.spill) and cap is not None:
        floor.check(cap, "device_memory" if machine.has_link else "host_memory")
    return floor


def _around(machine: Machine, work: Work, standing: list[Tile]) -> Surroundings:
    return Surroundings(rooms=machine.rooms, standing=sizes_of(standing), spills=machine.spill, cores=machine.cores_of_each,
                        rates=machine.rates, copies=machine.device.startswith("emulated"), update=work.update)  # fmt: skip


def _placed(
    alone: Callable[[], Program], standing: list[Tile], work: Work, machine: Machine,
    updating: Callable[[frozenset[Tile]], Program],
) -> tuple[Program, Demand]:  # fmt: skip
    """Return the program of one node with its updates placed, and its demand.

    alone: returns the program with every update on one device. updating: returns the program on all devices, with the updates
    of some tiles on the host.
    """
    chosen = _on_host(alone, standing, work, machine)
    placed = updating(chosen) if chosen or machine.devices > 1 else alone()
    demand = demand_of([placed], standing)
    if chosen and work.update == "auto" and _is_tight(demand, machine):
        return _placed(alone, standing, replace(work, update="device"), machine, updating)
    return placed, demand


def _on_host(alone: Callable[[], Program], standing: list[Tile], work: Work, machine: Machine) -> frozenset[Tile]:
    """Return the weight tiles whose updates run on the host."""
    if not machine.has_link or work.update == "device":
        return NOWHERE
    if work.update == "host":
        return frozenset(operation.operands[0] for operation in updates_of(alone()))
    rates = machine.rates.on(machine.devices)
    return tiles_to_update_on_host(alone(), demand_of([alone()], standing), _together(machine), rates)


def _placed_on_nodes(
    standing: Mapping[int, list[Tile]], parameters: Parameters, work: Work, machine: Machine,
    updating: Callable[[frozenset[Tile]], Program],
) -> list[tuple[Program, Demand]]:  # fmt: skip
    """Return the parts of some nodes with their updates placed, and their demands.

    standing: by the number of these nodes. updating: as in `_placed`.
    """
    homes = homes_of(parameters, machine.nodes, machine.devices)

    @cache
    def parts(on_host: frozenset[Tile]) -> dict[int, Program]:
        nodes = {0, *standing}
        return dict(zip(nodes, parts_of(updating(on_host), nodes, machine.devices), strict=True))

    def placed(wish: str, tight: Collection[int] = ()) -> list[tuple[Program, Demand]]:
        wishes = [NONE if node in tight else wish for node in range(machine.nodes)]
        found = parts(tiles_on_host(parameters, homes, wishes))
        return [(found[node], demand_of([found[node]], own)) for node, own in standing.items()]

    if not machine.has_link or work.update == "device":
        return placed(NONE)
    if work.update == "host":
        return placed(ALL)
    of_first = [tile for tile in parameters.states() if not homes.get(tile, 0)]
    wish = wish_for(parts(NOWHERE)[0], of_first, _together(machine), machine.rates.on(machine.devices))
    tight = {node for node, (_, demand) in zip(standing, placed(wish), strict=True) if _is_tight(demand, machine)}
    return placed(wish, tight)


def _together(machine: Machine) -> int | None:
    """Return the cap of all devices of a node together; None for none."""
    cap = machine.cap(machine.host_nbytes)
    return None if cap is None else cap * machine.devices


def _is_tight(demand: Demand, machine: Machine) -> bool:
    """Return whether RAM over a spill folder is too small for an operation of its own."""
    host = machine.host_nbytes
    return machine.spill and host is not None and demand.rounded(PAGE).passing().floor_nbytes > host
