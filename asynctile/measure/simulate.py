"""A run without bytes: what a program would move under given caps, by the very code that decides in a run.

It drives asynctile/run/assembly.py over a dry device and counts; `layers/plan.py` reports it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from asynctile.device.dry import DryDevice, DrySpill
from asynctile.program.grain import FINE, Grain
from asynctile.program.handle import Handle
from asynctile.program.needs import demand_of
from asynctile.program.operation import Operation
from asynctile.program.program import Fetch, Program
from asynctile.run.assembly import Tiers
from asynctile.storage.demand import Demand
from asynctile.storage.tile import NEVER


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one run in the steady state (the second of two), and peaks over both.

    uploaded, downloaded: between RAM and a device with memory of its own; fetched: results for the host, in neither.
    spill_read, spill_written: between RAM and the spill folder; spill_needed: the least limit of it.
    """

    uploaded_nbytes: int
    downloaded_nbytes: int
    fetched_nbytes: int
    spill_read_nbytes: int
    spill_written_nbytes: int
    device_peak_nbytes: int
    host_peak_nbytes: int
    spill_needed_nbytes: int


def simulate(
    program: Program,
    standing: Sequence[Handle],
    *,
    has_link: bool = True,
    grain: Grain = FINE,
    device_memory: int | None = None,
    host_memory: int | None = None,
    spill: bool = False,
    spill_limit: int | None = None,
    prefetch: int = 2,
) -> Traffic:
    """Traffic of `program` on a device with a link, or on RAM alone, under caps in bytes.

    standing: the persistent tiles, which must be fresh (they are moved about). BudgetError if a cap is below what is needed.
    """
    device = DryDevice("emulated" if has_link else "cpu", has_link, grain)
    places = DrySpill(spill_limit) if spill else None
    tiers = Tiers(device, device_memory, host_memory, places, prefetch)
    demand = demand_of([program], standing)
    at_once(tiers.cut(demand))
    for tile in standing:
        if tile in program.first_uses:  # what is overwritten first need not be there
            tiers.claim(tile)
    before = [0, 0, 0, 0]
    for _ in range(2):
        before = _moved(tiers)
        _walk(program, demand, tiers)
    moved = [after - first for after, first in zip(_moved(tiers), before, strict=True)]
    return Traffic(
        uploaded_nbytes=moved[0],
        downloaded_nbytes=moved[1],
        fetched_nbytes=sum(entry.tile.nbytes for entry in program.entries if isinstance(entry, Fetch)),
        spill_read_nbytes=moved[2],
        spill_written_nbytes=moved[3],
        device_peak_nbytes=tiers.top.ledger.peak_nbytes if has_link else 0,
        host_peak_nbytes=tiers.host.ledger.peak_nbytes,
        spill_needed_nbytes=places.needed_nbytes if places is not None else 0,
    )


def at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("a run without bytes waited for something")


def _moved(tiers: Tiers) -> list[int]:
    """Bytes so far: up, down, from the file, to the file."""
    link = (tiers.top.loaded_nbytes, tiers.top.written_nbytes) if tiers.link is not None else (0, 0)
    disk = (tiers.host.loaded_nbytes, tiers.host.written_nbytes) if tiers.spill is not None else (0, 0)
    return [*link, *disk]


def _walk(program: Program, demand: Demand, tiers: Tiers) -> None:
    """One run, as asynctile/run/job.py does it."""
    for tile in program.inputs.values():
        tiers.claim(tile)
    tiers.begin(program, demand)
    base, look_ahead, next_uses = tiers.order.base, tiers.look_ahead(), tiers.next_uses(program)
    for index, entry in enumerate(program.entries):
        uses = tuple([use if use == NEVER else base + use for use in next_uses[index]])
        if isinstance(entry, Operation):
            tiers.lane.issue(entry, uses, None)
        elif isinstance(entry, Fetch):
            tiers.lane.fetch(entry.tile, None, uses[0])  # type: ignore[arg-type]  # copied by nobody
        look_ahead(index)
        tiers.window.forget_done()
    for tile in program.inputs.values():
        if tile.slot is not None or tile.backing is not None:
            tiers.top.release(tile)
    tiers.end(program)
