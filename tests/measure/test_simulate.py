"""A plan and a run make the same decisions."""

from itertools import pairwise

import pytest

from asynctile import Engine
from asynctile.measure.simulate import simulate
from asynctile.share import runtime_of
from tests.inside_engine import device_of
from tests.matmul import Matmul


@pytest.mark.parametrize("plays", [True, False], ids=["played", "by coroutines"])
@pytest.mark.parametrize("tiles", [3, 20, 33.5, 48])
@pytest.mark.parametrize("prefetch", [0, 2, 8])
async def test_a_run_makes_the_planned_moves(prefetch: int, tiles: float, plays: bool) -> None:
    work, twin = Matmul(), Matmul()
    cap = int(tiles * work.nbytes)
    async with Engine("emulated", device_memory=cap, prefetch=prefetch) as engine:
        if not plays:
            device_of(engine).workers = None
        await work.prepare(engine)
        moved = []
        for _ in range(4):
            await work.run(engine)
            moved.append(engine.statistics())
        assert runtime_of(engine).tiers.top.arena.packed is (tiles < 48)
    traffic = simulate(twin.program, twin.standing(), device_memory=cap, prefetch=prefetch)
    assert traffic.divided is (tiles < 48)
    for before, after in pairwise(moved):
        assert traffic.uploaded_nbytes == after.uploaded_bytes - before.uploaded_bytes
        assert traffic.downloaded_nbytes == after.downloaded_bytes - before.downloaded_bytes
    assert moved[-1].device_peak_bytes == (cap - traffic.unused_nbytes if traffic.divided else traffic.device_peak_nbytes)


@pytest.mark.parametrize("slots", [30, 60, 100])
def test_prefetching_costs_few_loads(slots: int) -> None:
    loads = {}
    for depth in (0, 2):
        work = Matmul(n=8)
        traffic = simulate(work.program, work.standing(), device_memory=slots * work.nbytes, prefetch=depth)
        loads[depth] = traffic.uploaded_nbytes
    assert 0 < loads[0] <= loads[2] <= 1.25 * loads[0]


def test_nothing_moves_if_everything_fits() -> None:
    work = Matmul(n=8)
    assert simulate(work.program, work.standing(), device_memory=193 * work.nbytes, prefetch=8).uploaded_nbytes == 0


def test_the_number_of_copies_is_the_moved_bytes_divided_by_the_size_of_a_tile() -> None:
    """All tiles of this program have the same size."""
    work = Matmul(n=8)
    traffic = simulate(work.program, work.standing(), device_memory=40 * work.nbytes)
    moved = traffic.uploaded_nbytes + traffic.downloaded_nbytes + traffic.copied_nbytes + traffic.fetched_nbytes
    assert traffic.copies == moved // work.nbytes > 100
