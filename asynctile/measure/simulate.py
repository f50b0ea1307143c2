"""A run without bytes: what a program would move under given caps, by the very code that decides in a run.

It sends the very coroutines of a job (asynctile/run/job.py) through a dry device and counts; `layers/plan.py` reports it. Where
steps that repeat are played, or go by a packing, a step moves what its schedule says (asynctile/schedule/decide.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asynctile.device.dry import DryDevice, DrySpill
from asynctile.memory.tier import Tier
from asynctile.memory.tiers import TierOptions, Tiers
from asynctile.program.grain import FINE, Grain
from asynctile.program.needs import demand_of
from asynctile.program.program import Fetch, Program
from asynctile.repeat.arrival import in_slots
from asynctile.repeat.packings import packing_of
from asynctile.repeat.space import space_of
from asynctile.run.assembly import Assembly
from asynctile.run.at_once import at_once
from asynctile.run.job import Job
from asynctile.schedule.decide import decide
from asynctile.schedule.rates import CORES, Rates
from asynctile.schedule.schedule import DISK, TOP, Kind, Schedule
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import Demand, align
from asynctile.storage.tile import Tile


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one run in the steady state (the second of two), and peaks over both.

    uploaded, downloaded: between RAM and a device with memory of its own; fetched: results for the host, in neither.
    copied: within the memory that operations run in. copies: how many copies there are, over the link and within any memory.
    spill_read, spill_written: between RAM and the spill folder; spill_needed: the least limit of it. divided: whether tiles
    come and go in that memory; packed: whether they then stand at any byte of it (asynctile/schedule/packing.py), not in
    slots. unused: of its cap, what no tile stands in where it is fullest; in slots that is looked at between two steps and at
    the marks of one. 0 where it holds everything.
    """

    uploaded_nbytes: int
    downloaded_nbytes: int
    fetched_nbytes: int
    copied_nbytes: int
    copies: int
    spill_read_nbytes: int
    spill_written_nbytes: int
    device_peak_nbytes: int
    host_peak_nbytes: int
    spill_needed_nbytes: int
    divided: bool
    packed: bool
    unused_nbytes: int


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
    played: bool = False,
    rates: Rates = CORES,
) -> Traffic:
    """Traffic of `program` on the device called `device`, which need not be there, under caps in bytes.

    standing: the persistent tiles, which must be fresh (they are moved about). demand: of both, if it is known. played: of a
    step that is played, if it can be, and by a packing where there is one. rates: of that device and its host.
    BudgetError if a cap is below what is needed.
    """
    has_link = device != "cpu"
    dry = DryDevice(device, has_link, grain)
    places = DrySpill(spill_limit) if spill else None
    options = TierOptions(device_memory=device_memory, host_memory=host_memory, prefetch=prefetch, rates=rates)
    tiers = Tiers(dry, places, dry.add_stream("spill", 1), options)
    assembly, demand = Assembly(tiers), demand or demand_of([program], standing)
    at_once(assembly.cut(demand))
    for tile in standing:
        if tile in program.first_uses:  # what is overwritten first need not be there
            assembly.put_dry(tile)
    packing = packing_of(program, demand, tiers) if played else None
    may = packing is not None or not tiers.top.arena.divided
    schedule = decide(program, space_of(tiers, demand), packing) if played and prefetch and may else None
    if schedule is not None:
        moved, peaks = _scheduled(schedule), schedule.peaks
    else:
        moved = _moved_twice(assembly, program, demand, dry)
        peaks = tuple(tier.ledger.peak_nbytes for tier in tiers.from_the_top())
    return Traffic(
        uploaded_nbytes=moved[0],
        downloaded_nbytes=moved[1],
        fetched_nbytes=sum(entry.tile.nbytes for entry in program.entries if isinstance(entry, Fetch)),
        copied_nbytes=moved[4],
        copies=moved[5],
        spill_read_nbytes=moved[2],
        spill_written_nbytes=moved[3],
        device_peak_nbytes=peaks[TOP] if has_link else 0,
        host_peak_nbytes=peaks[-1],
        spill_needed_nbytes=places.needed_nbytes if places is not None else 0,
        divided=tiers.top.arena.divided,
        packed=packing is not None,
        unused_nbytes=_unused_nbytes(tiers.top, schedule) if packing is None else packing.cap - packing.peak_nbytes,
    )


def _unused_nbytes(top: Tier, schedule: Schedule | None) -> int:
    """Of its cap, by the step of `schedule`, or by what stands there now."""
    if not top.arena.divided or top.arena.cap is None:
        return 0
    if schedule is None:
        return top.arena.cap - sum(residency.tile.nbytes for residency in top.ledger.resident)
    moments = (in_slots(standing, TOP) for standing in (schedule.start, *schedule.at.values()))
    return top.arena.cap - max(sum(tile.nbytes for tile in tiles) for tiles in moments)


def _moved_twice(assembly: Assembly, program: Program, demand: Demand, dry: DryDevice) -> list[int]:
    """By the second of two runs."""
    before = [0] * 6
    for _ in range(2):
        before = _moved(assembly.tiers, dry)
        for tile in program.inputs.values():
            assembly.put_dry(tile)
        at_once(Job(assembly, program, demand).finish())
    return [after - first for after, first in zip(_moved(assembly.tiers, dry), before, strict=True)]


def _scheduled(schedule: Schedule) -> list[int]:
    """By a step that is played: bytes up, down, from the file, to the file, within the device's memory; how many copies."""
    moved = dict.fromkeys(((kind, way) for kind in Kind for way in (False, True)), 0)
    for entry in schedule.entries:
        moved[entry.kind, entry.places[0].tier == DISK] += entry.nbytes
    filled = sum(align(tile.nbytes, PAGE) for tile in schedule.inputs_below())
    read, written = moved[Kind.TRANSFER, False], moved[Kind.TRANSFER, True] + filled
    copied = sum(entry.nbytes for entry in schedule.entries if entry.kind is Kind.COPY and entry.places[0].tier == TOP)
    copies = sum(entry.kind in (Kind.UPLOAD, Kind.DOWNLOAD, Kind.COPY, Kind.FETCH) for entry in schedule.entries)
    return [moved[Kind.UPLOAD, False], moved[Kind.DOWNLOAD, False], read, written, copied, copies]


def _moved(tiers: Tiers, dry: DryDevice) -> list[int]:
    """Bytes so far: up, down, from the file, to the file, within the device's memory; how many copies."""
    link = (tiers.top.loaded_nbytes, tiers.top.written_nbytes) if tiers.link is not None else (0, 0)
    disk = (tiers.host.loaded_nbytes, tiers.host.written_nbytes) if tiers.spill is not None else (0, 0)
    return [*link, *disk, 0, dry.copies]
