"""A plan and a run make the same decisions."""

from itertools import pairwise

import pytest

from asynctile import Engine
from asynctile.measure.simulate import simulate
from asynctile.schedule.cursor import MOST_OF_SLOTS, OVER_LINK
from tests.inside_engine import device_of
from tests.matmul import Matmul


@pytest.mark.parametrize("slots", [3, 8, 20, 48])
@pytest.mark.parametrize("prefetch", [0, 2, 8])
async def test_a_simulated_run_moves_what_a_real_one_moves(slots, prefetch):
    work, twin = Matmul(), Matmul()
    async with Engine("emulated", device_memory=slots * work.nbytes, prefetch=prefetch) as engine:
        engine.plays = False
        await work.prepare(engine)
        await work.run(engine)
        first = engine.statistics()
        await work.run(engine)
        second = engine.statistics()
    traffic = simulate(twin.program, twin.standing(), device_memory=slots * work.nbytes, prefetch=prefetch)
    assert traffic.uploaded_nbytes == second.uploaded_bytes - first.uploaded_bytes
    assert traffic.downloaded_nbytes == second.downloaded_bytes - first.downloaded_bytes
    assert traffic.device_peak_nbytes == second.device_peak_bytes


@pytest.mark.parametrize("plays", [True, False], ids=["played", "by coroutines"])
@pytest.mark.parametrize("tiles", [8, 20, 33.5])
async def test_a_simulated_run_that_repeats_moves_what_a_packed_one_moves(tiles: float, plays: bool) -> None:
    work, twin = Matmul(), Matmul()
    cap = int(tiles * work.nbytes)
    async with Engine("emulated", device_memory=cap) as engine:
        if not plays:
            device_of(engine).workers = None  # nobody plays: coroutines carry the schedule out
        await work.prepare(engine)
        moved = []
        for _ in range(4):
            await work.run(engine)
            moved.append(engine.statistics())
        assert engine.tiers.top.arena.packed
    traffic = simulate(twin.program, twin.standing(), device_memory=cap, played=True)
    assert traffic.packed and traffic.divided
    for before, after in pairwise(moved[1:]):
        assert traffic.uploaded_nbytes == after.uploaded_bytes - before.uploaded_bytes
        assert traffic.downloaded_nbytes == after.downloaded_bytes - before.downloaded_bytes
    assert cap - traffic.unused_nbytes <= moved[-1].device_peak_bytes <= cap


@pytest.mark.parametrize("slots", [30, 60, 100])
def test_prefetching_costs_no_more_loads_than_the_slots_that_it_holds(slots):
    loads = {}
    for depth in (0, 2):
        work = Matmul(n=8)
        traffic = simulate(work.program, work.standing(), device_memory=slots * work.nbytes, prefetch=depth)
        loads[depth] = traffic.uploaded_nbytes // work.nbytes
    held = min(2 * (OVER_LINK.loaded + OVER_LINK.free), int(MOST_OF_SLOTS * slots) + 1)
    sweeps = 8  # the product goes over B once for each row of A
    assert 0 < loads[0] <= loads[2] <= loads[0] + sweeps * held


def test_nothing_leaves_early_where_everything_fits():
    work = Matmul(n=8)
    assert simulate(work.program, work.standing(), device_memory=193 * work.nbytes, prefetch=8).uploaded_nbytes == 0


@pytest.mark.parametrize("played", [False, True])
def test_as_many_copies_are_counted_as_the_bytes_are_tiles(played):
    """Of this program all tiles are alike."""
    work = Matmul(n=8)
    traffic = simulate(work.program, work.standing(), device_memory=40 * work.nbytes, played=played)
    moved = traffic.uploaded_nbytes + traffic.downloaded_nbytes + traffic.copied_nbytes + traffic.fetched_nbytes
    assert traffic.copies == moved // work.nbytes > 100
