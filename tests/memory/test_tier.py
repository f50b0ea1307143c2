"""A tier on streams that run behind: bytes arrive whole wherever tiles make room for each other; and a packed tier's memory."""

import gc
import random
import threading
import weakref
from contextlib import contextmanager

import numpy as np
import pytest

from asynctile.device.cpu import CpuDevice
from asynctile.device.emulated import EmulatedDevice
from asynctile.errors import TierError
from asynctile.memory.tiers import TierOptions, Tiers
from asynctile.ops import fill
from asynctile.program.needs import demand_of
from asynctile.program.program import Program
from asynctile.storage.demand import Demand
from asynctile.storage.residency import ABSENT, DIRTY
from asynctile.storage.spill import SpillTier
from asynctile.storage.tile import NEVER, Tile
from tests.settle import let_through

PAGE = 4096
CAP = 8 * PAGE
#: Cuts the cap into two slots of one page and two of three.
TWO_SIZES = Demand((PAGE, 3 * PAGE), (2, 1), {pages * PAGE: 90 for pages in (1, 2, 3)}, "work")


def tile(name, pages=1):
    return Tile(name, (pages * PAGE // 4,), persistent=True)


@contextmanager
def opened(name, folder):
    """Return tiers whose top tier has room for eight pages, in slots. cpu: over a folder; emulated: over RAM."""
    device = CpuDevice(2) if name == "cpu" else EmulatedDevice(threads=2)
    spill = transfers = None
    if name == "cpu":
        spill, transfers = SpillTier(folder), device.add_stream("spill", 4)
        spill.open()
    device.start()
    options = TierOptions(device_memory=CAP, host_memory=CAP if name == "cpu" else None, watchdog=60)
    tiers = Tiers((device,), spill, transfers, options)
    if tiers.link is not None:
        tiers.host.cut(demand_of([Program("none").finish()], [tile(f"ram{pages}", pages) for pages in (1, 2, 3)]), {})
    tiers.top.cut(TWO_SIZES, {})
    try:
        yield tiers
    finally:
        device.close()
        if spill is not None:
            spill.close()


@pytest.fixture(params=["cpu", "emulated"])
def tiers(request, tmp_path):
    with opened(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def gate(tiers):
    """An event that is opened at the end of a test at the latest, so that a failing test leaves nothing that hangs."""
    made = threading.Event()
    yield made
    made.set()


def compute(tiers, residency, work):
    """Enqueue work(array), which changes the tile, where operations run."""
    tiers.device.kernels["work"] = work
    operation = type(fill(residency.tile, 0.0))("work", (residency.tile,), "u")
    waits = () if residency.written is None else (residency.written,)
    event = tiers.device.launch(operation, (residency.array,), None, waits, tuple(residency.reads))
    tiers.run_ahead.add(event)
    tiers.top.written_by(residency, event, tiers.rank)


def born(tiers, one, value):
    """Give a tile a slot and overwrite all of it."""
    residency = tiers.top.of(one)
    tiers.top.admit([residency], "w")
    compute(tiers, residency, lambda array: array.fill(value))
    return residency


def refuse(*args):
    raise TierError("refused")


def let_go_on(tiers):
    """Block until every stream has run what it can. Where operations run, one of two threads is held up."""
    for stream in tiers.device.streams():
        let_through(stream)


async def test_an_allocation_taken_back_leaves_its_memory_to_others_after_its_work(tiers, gate):
    a = born(tiers, tile("a"), 3.0)
    compute(tiers, a, lambda array: gate.wait())
    slot = a.slot
    tiers.top.release(a)
    b = tiers.top.of(tile("b"))
    tiers.top.take_back(tiers.top.admit([b], "w"))
    assert b.state is ABSENT and b.slot is None
    other = born(tiers, tile("other"), 7.0)
    assert other.slot is slot
    let_go_on(tiers)
    assert not other.written.done
    gate.set()
    await tiers.run_ahead.drain()
    assert (other.array == 7).all()


async def pack(tiers):
    tiers.top.clear()
    await tiers.run_ahead.settle()
    tiers.top.pack()


async def test_only_views_keep_the_memory_that_a_packed_tier_frees(tiers):
    await pack(tiers)
    a = tiers.top.of(tile("a"))
    tiers.top.assume([(a, DIRTY, tiers.top.arena.range_at(PAGE, PAGE), NEVER)])
    a.array.fill(3.0)
    view, memory = a.array[:1], weakref.ref(tiers.top.arena.ground.memory)
    tiers.top.give_up(a)
    await tiers.run_ahead.drain()
    whole = weakref.ref(memory().whole)
    tiers.top.forget_pools()
    gc.collect()
    assert memory() is None and not tiers.top.arena.packed and tiers.top.arena.ground is None
    assert view[0] == 3
    del view
    gc.collect()
    assert whole() is None


async def test_memory_and_bytes_survive_the_change_between_packed_and_slots(tiers):
    ground, memory = tiers.top.arena.ground, tiers.top.arena.ground.memory
    a, b = born(tiers, tile("a"), 4.0), tiers.top.of(tile("b", 2))
    await pack(tiers)
    assert tiers.top.arena.packed and tiers.top.arena.ground is ground and ground.memory is memory
    tiers.top.assume([(b, DIRTY, tiers.top.arena.range_at(0, 2 * PAGE), NEVER)])
    b.array.fill(7.0)
    tiers.top.clear()
    await tiers.run_ahead.drain()
    tiers.top.cut(TWO_SIZES, {})
    assert tiers.top.arena.pools and tiers.top.arena.ground is ground and ground.memory is memory
    tiers.top.admit([a, b], "rr")
    await tiers.run_ahead.drain()
    assert (a.array == 4).all() and (b.array == 7).all()


async def test_a_tier_without_enough_memory_is_not_packed(tiers, monkeypatch):
    tiers.top.forget_pools()
    monkeypatch.setattr("asynctile.storage.host.reserve", refuse)
    with pytest.raises(TierError, match="refused"):
        tiers.top.pack()
    assert not tiers.top.arena.packed and not tiers.top.arena.divided and tiers.top.arena.ground is None


@pytest.mark.parametrize("seed", range(4))
async def test_no_byte_is_lost_however_tiles_are_loaded_evicted_and_changed(tiers, seed):
    """Nothing is awaited in between: four streams run behind, in any permitted order."""
    rng = random.Random(seed)
    tiles = [tile(f"t{number}", rng.choice((1, 1, 2, 3))) for number in range(7)]
    values = {}
    for step in range(250):
        one = rng.choice(tiles)
        residency, act = tiers.top.of(one), rng.random()
        if residency.state is ABSENT:
            born(tiers, one, float(step))
            values[one] = float(step)
        elif residency.slot is not None and act < 0.3:
            tiers.top.give_up(residency)
        elif residency.slot is None and act < 0.2:
            tiers.top.take_back(tiers.top.admit([residency], "w"))
        else:
            tiers.top.admit([residency], "u")
            compute(tiers, residency, lambda array: np.add(array, 1, out=array))
            values[one] += 1
        assert tiers.top.arena.used_nbytes <= tiers.top.ledger.peak_nbytes <= CAP
    tiers.top.clear()
    for one in values:
        tiers.top.admit([tiers.top.of(one)], "r")
        await tiers.run_ahead.drain()
        assert (tiers.top.of(one).array == values[one]).all()
    tiers.top.clear()
    await tiers.run_ahead.drain()
