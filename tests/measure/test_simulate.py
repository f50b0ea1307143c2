"""A plan and a run make the same decisions."""


import pytest

from asynctile import Engine
from asynctile.measure.simulate import simulate
from asynctile.schedule.cursor import MOST_OF_SLOTS, OVER_LINK
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
