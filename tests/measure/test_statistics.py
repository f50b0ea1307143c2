"""Statistics of a working engine, from any thread: waiting and running work. layers/test_telling.py tests those of steps."""

import asyncio
import threading
from dataclasses import FrozenInstanceError

import pytest

from asynctile import Engine
from asynctile.ops import fill
from asynctile.share import runtime_of
from tests.inside_engine import device_of
from tests.matmul import Matmul
from tests.settle import HANG_S, until


async def test_statistics_are_available_from_any_thread_while_the_engines_loop_is_blocked():
    gate, blocked = threading.Event(), threading.Event()

    def block():
        blocked.set()
        gate.wait(HANG_S)

    async def hold_up():
        block()

    async with Engine("emulated", device_memory="1MiB") as engine:
        call = asyncio.create_task(runtime_of(engine).call(hold_up()))
        await until(blocked.is_set)
        for statistics in (engine.statistics(), await asyncio.to_thread(engine.statistics)):
            assert statistics.share == "engine"
            with pytest.raises(FrozenInstanceError):
                statistics.steps = 1
        gate.set()
        await call


async def test_queues_count_waiting_and_running_work():
    gate, work = threading.Event(), Matmul(n=1)
    async with Engine("cpu") as engine:
        await work.prepare(engine)
        threads = device_of(engine).threads
        runtime_of(engine).device.kernels["fill"] = lambda target, value: gate.wait(HANG_S)

        def depth():
            return {queue.name: (queue.waiting, queue.running) for queue in engine.statistics().queues}

        assert set(depth().values()) == {(0, 0)}
        tile = work.tiles["c"][0, 0]
        for _ in range(threads + 2):
            await runtime_of(engine).launch(fill(tile, 1.0))
        await until(lambda: depth()["compute"] == (threads + 1, 1))  # each waits for the one before it
        gate.set()
        await runtime_of(engine).synchronize()
        assert set(depth().values()) == {(0, 0)}
