"""The engine on programs and on single operations, without a model."""

import asyncio
import json
import threading

import numpy as np
import pytest

from asynctile import DeviceError, Engine
from asynctile.ops import fill
from asynctile.share import runtime_of
from asynctile.streams.run_ahead import RUN_AHEAD_OPERATIONS
from tests.matmul import Matmul, product_in_ram
from tests.settle import HANG_S

KINDS = [("cpu", {}), ("emulated", {}), ("emulated", {"slots": 3}), ("emulated", {"slots": 5, "prefetch": 0})]


def engine_for(work, kind, slots=None, **options):
    cap = None if slots is None else slots * work.nbytes
    return Engine(kind, device_memory=cap, **options)


@pytest.mark.parametrize(("kind", "options"), KINDS)
async def test_a_program_gives_the_same_bits_wherever_its_tiles_are(kind, options):
    work, again = Matmul(), Matmul()
    expected = await product_in_ram(work)
    async with engine_for(again, kind, **options) as engine:
        await again.prepare(engine)
        for _ in range(3):
            await again.run(engine)
        assert np.array_equal(await again.result(engine), expected)
    assert np.allclose(expected, work.a @ work.b, atol=1e-3)


async def test_the_host_sleeps_when_it_is_too_far_ahead_of_the_device():
    work = Matmul(n=1)
    async with engine_for(work, "cpu") as engine:
        await work.prepare(engine)
        gate = threading.Event()
        runtime_of(engine).device.kernels["fill"] = lambda target, value: gate.wait()
        issued = 0

        async def job():
            nonlocal issued
            for _ in range(2 * RUN_AHEAD_OPERATIONS):
                await runtime_of(engine).assembly.launch(fill(work.tiles["c"][0, 0], 1.0), None)
                issued += 1

        running = asyncio.create_task(runtime_of(engine).call(job()))
        async with asyncio.timeout(HANG_S):
            while issued < RUN_AHEAD_OPERATIONS:  # noqa: ASYNC110  # counted on the other loop
                await asyncio.sleep(0)
        assert issued == RUN_AHEAD_OPERATIONS
        gate.set()
        await running
        await runtime_of(engine).synchronize()


async def test_a_failing_kernel_fails_its_dependents_and_the_engine_goes_on():
    work = Matmul()
    async with engine_for(work, "emulated", slots=6) as engine:
        await work.prepare(engine)
        real, calls = runtime_of(engine).device.kernels["gemm"], []

        def fails_once(*args):
            calls.append(None)
            if len(calls) == 20:
                raise FloatingPointError("kernel 20")
            real(*args)

        runtime_of(engine).device.kernels["gemm"] = fails_once

        async def job():
            async with runtime_of(engine).exclusive():
                run = await runtime_of(engine).start(work.program, work.demand, {})
                try:
                    await run.finish()
                except FloatingPointError:
                    return {tile.name[0] for tile in await run.abandon()}

        assert await runtime_of(engine).call(job()) == {"c"}
        await work.run(engine)
        assert np.allclose(await work.result(engine), work.a @ work.b, atol=1e-3)


async def test_closing_leaves_no_thread_and_a_closed_engine_says_so():
    before = threading.active_count()
    engine = Engine("emulated")
    async with engine:
        assert threading.active_count() > before
    names = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith("asynctile") for name in names)
    with pytest.raises(DeviceError, match="not open"):
        await runtime_of(engine).synchronize()


async def test_reading_a_tile_that_was_never_written_names_it():
    work = Matmul()
    async with engine_for(work, "emulated") as engine:
        await work.prepare(engine)
        with pytest.raises(Exception, match=r"c\[0,0\] was never written"):
            await runtime_of(engine).read(work.tiles["c"][0, 0])


async def test_without_prefetch_no_load_runs_beside_a_kernel(tmp_path):
    work = Matmul()
    async with engine_for(work, "emulated", slots=6, prefetch=0) as engine:
        await work.prepare(engine)
        engine.start_trace(tmp_path / "t.json")
        await work.run(engine)
        engine.stop_trace()
    spans = [event for event in json.loads((tmp_path / "t.json").read_text()) if event["ph"] == "X"]
    kernels = [span for span in spans if span["name"] == "gemm"]
    loads = [span for span in spans if span["name"].startswith("upload")]
    assert loads
    for load in loads:
        assert not any(span["ts"] < load["ts"] + load["dur"] and load["ts"] < span["ts"] + span["dur"] for span in kernels)
