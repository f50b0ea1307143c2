"""How far the host runs ahead of a GPU. tests/test_engine.py and test_failures.py test that it waits, and the watchdog."""

import asyncio
import threading

import pytest

from asynctile import Engine
from asynctile.ops import fill
from asynctile.program.grain import COARSE, FINE
from asynctile.program.needs import demand_of
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent
from asynctile.streams.run_ahead import RUN_AHEAD_OPERATIONS, RunAhead
from tests.inside_engine import device_of
from tests.settle import HANG_S, settle, turns, until


async def issued_ahead(engine: Engine, share, expected: int) -> int:
    """Return the number of operations that a job on `share` issues while the device is busy with the first."""
    tile, gate, issued = Tile("t", (16,), "float32"), threading.Event(), 0
    await runtime_of(share).reserve(demand_of([], [tile]))
    device = device_of(engine)
    device.driver.hold(gate, device.streams()[0].handle)

    async def job():
        nonlocal issued
        for _ in range(2 * COARSE.run_ahead):
            await runtime_of(share).assembly.launch(fill(tile, 1.0), None)
            issued += 1

    running = asyncio.create_task(runtime_of(share).call(job()))
    try:
        await until(lambda: issued >= expected)
        await settle(engine)
        return issued
    finally:
        gate.set()
        await running
        await runtime_of(share).synchronize()


async def test_a_device_that_is_busy_leaves_the_host_room_to_run_ahead_of_another():
    ahead = RunAhead(list, None)
    events = [StreamEvent() for _ in range(RUN_AHEAD_OPERATIONS)]
    for event in events:
        ahead.add(event, device=1)
    assert [ahead.is_full(device) for device in range(3)] == [False, True, False]
    async with asyncio.timeout(HANG_S):
        await ahead.room(2)
    waiting = asyncio.create_task(ahead.room(1))
    await turns()
    assert not waiting.done()
    for event in events:
        event.done = True
        event.wake()
    await waiting
    assert not ahead.is_full(1)


@pytest.mark.usefixtures("soft_gpu")
async def test_the_host_runs_as_far_ahead_of_a_gpu_as_needed_and_less_beside_another_share():
    assert FINE.run_ahead < COARSE.run_ahead
    async with asyncio.timeout(HANG_S), Engine("cuda:0", device_memory="64MiB", host_memory="64MiB") as engine:
        alone = await issued_ahead(engine, engine, COARSE.run_ahead)
        async with engine.share(device_memory="16MiB", host_memory="16MiB") as part:
            beside = await issued_ahead(engine, engine, FINE.run_ahead)
            lent = await issued_ahead(engine, part, FINE.run_ahead)
        again = await issued_ahead(engine, engine, COARSE.run_ahead)
    assert (alone, beside, lent, again) == (COARSE.run_ahead, FINE.run_ahead, FINE.run_ahead, COARSE.run_ahead)


async def test_tiles_that_are_away_fill_no_limit_and_are_drained_with_the_rest():
    ahead = RunAhead(list, None)
    away = [StreamEvent() for _ in range(2 * RUN_AHEAD_OPERATIONS)]
    for event in away:
        ahead.add(event, 1 << 40, away=True)
    assert not ahead.is_full() and not ahead.is_full_of_bytes()
    draining = asyncio.create_task(ahead.drain())
    await turns()
    assert not draining.done()
    for event in away:
        event.done, event.error = True, None
        event.wake()
    await draining
    failed = StreamEvent()
    failed.done, failed.error = True, OSError("lost")
    ahead.add(failed, away=True)
    with pytest.raises(OSError, match="lost"):
        await ahead.drain()
