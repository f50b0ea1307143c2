"""A plan and a run make the same decisions."""

import sys
from pathlib import Path

import pytest

from asynctile import Engine
from asynctile.simulate import simulate

sys.path.insert(0, str(Path(__file__).parent))
from matmul import Matmul


@pytest.mark.parametrize("slots", [3, 8, 20, 48])
@pytest.mark.parametrize("prefetch", [0, 2, 8])
async def test_a_simulated_run_moves_what_a_real_one_moves(slots, prefetch):
    work, twin = Matmul(), Matmul()
    async with Engine("emulated", device_memory=slots * work.nbytes, prefetch=prefetch) as engine:
        await work.prepare(engine)
        await work.run(engine)
        first = engine.statistics()
        await work.run(engine)
        second = engine.statistics()
    traffic = simulate(twin.program, twin.standing(), slots * work.nbytes, prefetch)
    assert traffic.loaded_nbytes == second.uploaded_bytes - first.uploaded_bytes
    assert traffic.written_back_nbytes == second.downloaded_bytes - first.downloaded_bytes
    assert traffic.device_peak_nbytes == second.device_peak_bytes


def test_prefetching_moves_no_more_than_a_little_more_when_there_is_room():
    loads = {}
    for depth in (0, 2):
        work = Matmul(n=8)
        loads[depth] = simulate(work.program, work.standing(), 100 * work.nbytes, depth).loaded_nbytes
    assert 0 < loads[0] <= loads[2] <= 1.1 * loads[0]
