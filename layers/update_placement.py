"""The place of each weight tile's update, device or host: a model of what a step's updates cost, and its minimum.

This is pure: the same program, caps and rates give the same placement. It changes no bit of a result, only what moves
(gradients.py). If a tile's states find no room on the device, updating it there costs the way there and back. If it is updated
on the host, its gradient comes down, its new weight goes up, and the CPU's memory does the rest. Links, CPU and compute work
side by side, so a step takes as long as the slowest of them. asynctile/schedule/rates.py defines the rates.

The traffic with every update on the device is counted (asynctile/schedule/fewest.py): how many states stay there, and what else
goes over the link. The way not taken: counting for each split. The same amount stays in each, so one count predicts the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from asynctile.layers.config import STATES_NBYTES
from asynctile.measure.cores import UPDATE_NBYTES
from asynctile.program.operation import UPDATE, WRITE, Operation
from asynctile.program.program import Program
from asynctile.schedule.fewest import Moved, fewest
from asynctile.schedule.rates import Rates
from asynctile.storage.demand import ALIGNMENT, Demand, align
from asynctile.storage.input import shown
from asynctile.storage.tile import Tile

#: The values that a user may give for `update`.
UPDATES = ("auto", "device", "host")
#: The placement with no tile on the host.
NOWHERE: frozenset[Tile] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of a step's updates, on average for each of `tiles` weight tiles.

    compute_s: seconds of everything else on the device. other_up_nbytes, other_down_nbytes: other traffic over the link.
    resident: how many tiles' states stay on the device if they are updated there, parts of tiles included.

    Bytes of one tile: states_nbytes go up and down again if its states do not stay. If it is updated on the host,
    gradient_nbytes go down and weight_nbytes go up, and its update moves memory_nbytes of RAM.
    """

    tiles: int
    resident: float
    compute_s: float
    states_nbytes: float
    gradient_nbytes: float
    weight_nbytes: float
    memory_nbytes: float
    other_up_nbytes: float = 0.0
    other_down_nbytes: float = 0.0


def seconds(costs: Costs, rates: Rates, on_host: int) -> float:
    """Return how long a step takes with `on_host` tiles updated on the host: the longest of compute, both links and the CPU."""
    return max(costs.compute_s, *link_seconds(costs, rates, on_host), on_host * costs.memory_nbytes / rates.updated_per_s)


def link_seconds(costs: Costs, rates: Rates, on_host: int) -> tuple[float, float]:
    """Return the seconds that the link is busy upwards and downwards."""
    moving = max(0, costs.tiles - on_host - costs.resident)
    up = costs.other_up_nbytes + moving * costs.states_nbytes + on_host * costs.weight_nbytes
    down = costs.other_down_nbytes + moving * costs.states_nbytes + on_host * costs.gradient_nbytes
    return up / rates.up_per_s, down / rates.down_per_s


def cheapest(costs: Costs, rates: Rates) -> int:
    """Return how many tiles to update on the host so that a step takes the least time.

    Among equal times it prefers the least busy link, then the fewest tiles. Traffic that the model calls hidden is not quite
    hidden: loads wait behind a busy link.
    """
    def cost(on_host: int) -> tuple[float, float, int]:
        return seconds(costs, rates, on_host), sum(link_seconds(costs, rates, on_host)), on_host

    return min(range(costs.tiles + 1), key=cost)


def check_update(update: str) -> str:
    """Return `update` if it is one of UPDATES; otherwise raise ValueError."""
    if not isinstance(update, str) or update not in UPDATES:
        raise ValueError(f"update is {shown(update)}, expected one of {', '.join(UPDATES)}")
    return update


def updates_of(program: Program) -> list[Operation]:
    """Return the operations that update a weight tile (their first operand), in order."""
    return [operation for operation in program.operations() if operation.kernel.startswith("adamw")]


def updates_of_matrices(program: Program) -> list[Operation]:
    """Return the operations of `updates_of` whose weight tile is part of a matrix."""
    return [operation for operation in updates_of(program) if len(operation.operands[0].shape) == 2]


def tiles_to_update_on_host(program: Program, demand: Demand, device_memory: int | None, rates: Rates) -> frozenset[Tile]:
    """Return the weight tiles to update on the host, spread evenly over the step.

    program: the one with every update on the device. demand: of that program. device_memory: the cap, None for none. rates:
    of device and host. Only matrices are placed. Vectors are small, and their states stay on the device.
    """
    updates = updates_of_matrices(program)
    if device_memory is None or demand.resident_nbytes <= device_memory or not updates:
        return NOWHERE
    costs = costs_of(program, updates, fewest(program, device_memory, ALIGNMENT), rates)
    return frozenset(updates[index].operands[0] for index in spread(cheapest(costs, rates), len(updates)))


def link_seconds_of(program: Program, moved: Moved, update: str, rates: Rates) -> tuple[float, float]:
    """Return the seconds that the link is busy upwards and downwards in a step, with its updates where `update` puts them.

    program: the one with every update on the device. moved: its fewest bytes under the cap.
    """
    updates = updates_of_matrices(program)
    if update == "device" or not updates:
        return moved.loaded_nbytes / rates.up_per_s, moved.written_nbytes / rates.down_per_s
    costs = costs_of(program, updates, moved, rates)
    return link_seconds(costs, rates, costs.tiles if update == "host" else cheapest(costs, rates))


def costs_of(program: Program, updates: list[Operation], moved: Moved | None, rates: Rates) -> Costs:
    """Return the costs of `updates`, the operations of `program` that update matrices.

    moved: the fewest bytes that a step moves under the cap; None: it does not fit, so that all states move.
    """
    updated = [_operands(operation, UPDATE) for operation in updates]
    states = fmean(sum(tile.nbytes for tile in tiles) for tiles in updated)
    # Only updates use moments, so the share of moments that is loaded is the share of updates whose states move.
    moments = {tile: align(tile.nbytes) for tiles in updated for tile in tiles[1:]}
    moved = moved or Moved(0, 0, moments)
    moving = len(updates) * sum(moved.loaded.get(tile, 0) for tile in moments) / sum(moments.values())
    return Costs(
        tiles=len(updates),
        resident=len(updates) - moving,
        # States that are loaded for an update are written back.
        other_up_nbytes=max(0, moved.loaded_nbytes - moving * states),
        other_down_nbytes=max(0, moved.written_nbytes - moving * states),
        compute_s=sum(operation.flops for operation in program.operations()) / rates.flops_per_s,
        states_nbytes=states,
        gradient_nbytes=_mean(operation.operands[1] for operation in updates),
        # The weight itself, or its copy for compute.
        weight_nbytes=_mean((_operands(operation, WRITE) or operation.operands)[0] for operation in updates),
        memory_nbytes=UPDATE_NBYTES / STATES_NBYTES * states,
    )


def spread(count: int, total: int) -> list[int]:
    """Return `count` of `total` consecutive places, evenly apart."""
    return [index for index in range(total) if (index + 1) * count // total > index * count // total]


def _operands(operation: Operation, access: str) -> list[Tile]:
    return [tile for tile, how in zip(operation.operands, operation.access, strict=True) if how == access]


def _mean(tiles: Iterable[Tile]) -> float:
    """Return the mean bytes of a tile."""
    return fmean(tile.nbytes for tile in tiles)
