"""The traffic of a step under given caps, read from the schedule that runs follow.

Nothing runs, and the device need not be there. layers/plan.py reports the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from asynctile.execute.space import must_decide, space_of
from asynctile.memory.tiers import TierOptions, arenas_of
from asynctile.program.grain import FINE, Grain
from asynctile.program.needs import demand_of
from asynctile.program.operation import READ, WRITE
from asynctile.program.program import Program, Shipment
from asynctile.schedule.rates import CORES, Rates
from asynctile.schedule.schedule import DISK, RAM, RESULT, TOP, Kind, Schedule
from asynctile.storage.arena import Arena
from asynctile.storage.blocks import Blocks
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import Demand, align
from asynctile.storage.demands import demands
from asynctile.storage.tile import Tile


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one step moves, and its highest peak on a device.

    uploaded, downloaded: between RAM and devices with memory of their own. passed: from one device to another.
    sent, received: to and from other nodes.
    busiest: the most that one link carries in one direction.
    fetched: results for the host, not counted in those above.
    copied: within the memory that operations run in.
    copies: number of copies, over the link and within any memory.
    spill_read, spill_written: between RAM and the spill folder.
    spill_needed: least limit of the spill folder.
    divided: whether tiles come and go in the memory that operations run in.
    unused: bytes of its cap that no tile uses at the peak; 0 where it holds everything.
    schedule: the schedule that moves them.
    """

    uploaded_nbytes: int
    downloaded_nbytes: int
    passed_nbytes: int
    sent_nbytes: int
    received_nbytes: int
    busiest_nbytes: int
    fetched_nbytes: int
    copied_nbytes: int
    copies: int
    spill_read_nbytes: int
    spill_written_nbytes: int
    device_peak_nbytes: int
    spill_needed_nbytes: int
    divided: bool
    unused_nbytes: int
    schedule: Schedule = field(repr=False, compare=False)


def simulate(
    program: Program,
    standing: Sequence[Tile],
    *,
    demand: Demand | None = None,
    device: str = "emulated",
    grain: Grain = FINE,
    device_memory: int | None = None,
    host_memory: int | None = None,
    spill: bool = False,
    spill_limit: int | None = None,
    prefetch: int = 2,
    rates: Rates = CORES,
) -> Traffic:
    """Return the traffic of `program` on the device called `device`, under caps in bytes. BudgetError if a cap is too small.

    standing: the persistent tiles.
    demand: of the program and these tiles, if it is known.
    rates: of that device and its host.
    """
    has_link, demand = device != "cpu", demand or demand_of([program], standing)
    options = TierOptions(device_memory=device_memory, host_memory=host_memory, prefetch=prefetch, rates=rates)
    arenas = arenas_of(options, grain, has_link=has_link, spills=spill)
    asked = demands(demand, arenas)
    for arena, wanted in zip(arenas, asked, strict=True):
        arena.check(wanted)
    needed = _on_disk(asked[-1], arenas[-1], spill_limit) if spill else 0
    for arena, wanted in zip(arenas, asked, strict=True):
        arena.cut(wanted)
    space = space_of(arenas, asked, spills=spill, prefetch=prefetch, rates=rates)
    schedule = must_decide(program, space, arenas, asked)
    top, peak = arenas[TOP], max((schedule.peaks[TOP], *schedule.peaks[RAM + 1 :]))
    moved, carried, shipped = _moved(schedule), _carried(schedule), _shipped(program)
    copied = sum(entry.nbytes for entry in schedule.entries if entry.kind is Kind.COPY and entry.places[0].tier != RAM)
    return Traffic(
        uploaded_nbytes=sum(carried[Kind.UPLOAD]),
        downloaded_nbytes=sum(carried[Kind.DOWNLOAD]),
        passed_nbytes=sum(nbytes for (kind, _), nbytes in moved.items() if kind is Kind.PASS),
        sent_nbytes=shipped[READ],
        received_nbytes=shipped[WRITE],
        busiest_nbytes=max(*carried[Kind.UPLOAD], *carried[Kind.DOWNLOAD]),
        fetched_nbytes=moved[Kind.FETCH, RESULT],
        copied_nbytes=copied,
        copies=sum(entry.kind not in (Kind.OPERATION, Kind.TRANSFER) for entry in schedule.entries),
        spill_read_nbytes=moved[Kind.TRANSFER, TOP] + moved[Kind.TRANSFER, RAM],
        spill_written_nbytes=moved[Kind.TRANSFER, DISK] + sum(align(tile.nbytes, PAGE) for tile in schedule.inputs_below()),
        device_peak_nbytes=peak if has_link else 0,
        spill_needed_nbytes=needed,
        divided=top.divided,
        unused_nbytes=top.cap - peak if top.divided and top.cap is not None else 0,
        schedule=schedule,
    )


def _on_disk(demand: Demand, ram: Arena, limit: int | None) -> int:
    """Return the size of a spill file with a place for each tile, in bytes; 0 if RAM holds all of them."""
    blocks = Blocks(limit, PAGE)
    if not ram.keeps_all(demand):
        blocks.reserve(demand.exact)
    return blocks.end


def _moved(schedule: Schedule) -> Counter[tuple[Kind, int]]:
    """Return the bytes moved on this node, by kind of move and target tier."""
    moved = Counter[tuple[Kind, int]]()
    for entry in schedule.entries:
        if entry.node is None:
            moved[entry.kind, entry.places[0].tier] += entry.nbytes
    return moved


def _shipped(program: Program) -> Counter[str]:
    """Return the bytes that go to other nodes (READ) and come from them (WRITE)."""
    shipped = Counter[str]()
    for entry in program.entries:
        if isinstance(entry, Shipment):
            shipped[entry.access] += entry.tile.nbytes
    return shipped


def _carried(schedule: Schedule) -> dict[Kind, list[int]]:
    """Return the bytes that the link of each device to RAM carries, by direction."""
    found = {kind: [0] * schedule.program.devices for kind in (Kind.UPLOAD, Kind.DOWNLOAD)}
    for entry in schedule.entries:
        if entry.kind in found:
            found[entry.kind][entry.device] += entry.nbytes
    return found
