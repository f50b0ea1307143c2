"""The moves of an engine and their order, by its own account: launches, programs, statistics, and waiting kernels.

Bits are tested in test_engine.py and tests/memory, the state after a failure in test_failures.py.
"""

import asyncio
import threading

from asynctile import Engine
from asynctile.ops import copy
from asynctile.program.needs import demand_of
from asynctile.share import runtime_of
from asynctile.streams import run_ahead
from tests.by_hand import NBYTES, program_of, standing, values
from tests.settle import HANG_S, settle, until


async def test_launches_run_ahead_by_a_bounded_number_of_bytes_to_copy(monkeypatch):
    monkeypatch.setattr(run_ahead, "RUN_AHEAD_NBYTES", 4 * NBYTES)
    out, *many = tiles = standing("out", *(f"t{index}" for index in range(20)))
    begun, gate, operations = threading.Event(), threading.Event(), [copy(tile, out) for tile in many]

    def waiting(*args):
        begun.set()
        assert gate.wait(HANG_S)
        return true(*args)

    async def launches():
        for operation in operations:
            await runtime_of(engine).launch(operation)
            await until(begun.is_set)  # the first tile has arrived: its bytes no longer count
        await runtime_of(engine).synchronize()

    async with Engine("emulated", device_memory=40 * NBYTES, prefetch=1) as engine:
        await runtime_of(engine).reserve(demand_of([program_of(*operations)], tiles))
        await runtime_of(engine).store(values(many).items())
        true = runtime_of(engine).device.kernels["copy"]
        runtime_of(engine).device.kernels["copy"] = waiting
        running = asyncio.create_task(launches())
        try:
            await until(lambda: engine.statistics().uploaded_bytes >= 6 * NBYTES)
            await settle(engine)
            ahead = engine.statistics().uploaded_bytes
        finally:
            gate.set()
        assert await running is None
        assert engine.statistics().uploaded_bytes == 20 * NBYTES
    # The first tile has arrived and its operation hangs. One upload more than the bound is made before the launch is held back.
    assert ahead == 6 * NBYTES


async def test_single_launches_evict_the_least_recently_used_tiles():
    out, a, b, c, d = tiles = standing("out", "a", "b", "c", "d")
    async with Engine("emulated", device_memory=4 * NBYTES) as engine:
        await runtime_of(engine).reserve(demand_of([program_of(copy(a, out))], tiles))
        await runtime_of(engine).store(values([a, b, c, d]).items())
        loaded = []
        for tile in (a, b, c, a, d, c, a, b, a, c, d):
            before = engine.statistics().uploaded_bytes
            await runtime_of(engine).launch(copy(tile, out))
            if engine.statistics().uploaded_bytes > before:
                loaded.append(tile.name)
    assert loaded == ["a", "b", "c", "d", "b", "d"]
