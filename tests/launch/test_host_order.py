"""Operations of the host: their waits, failures, stalls, and how far ahead they are issued. test_on_host.py tests bits."""

import asyncio
import threading
import time

import numpy as np
import pytest

from asynctile import AsynctileError, BudgetError, Engine, StalledError
from asynctile.device.emulated import OneWay
from asynctile.ops import copy, fill, gelu
from asynctile.program.needs import demand_of
from asynctile.share import runtime_of
from asynctile.streams.run_ahead import RUN_AHEAD_OPERATIONS
from tests.by_hand import NBYTES, enqueued, on_host, prepared, program_of, run, standing, values
from tests.inside_engine import device_of, watch
from tests.matmul import Matmul, engine_for
from tests.settle import HANG_S, let_through, settle, until


@pytest.fixture
def one_worker(monkeypatch):
    """Give the compute stream one worker: ready work has run once any later work has."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})


def stream_of(engine, name):
    return next(stream for stream in device_of(engine).streams() if stream.name == name)


def watch_copies(monkeypatch, way, before):
    """Call `before` at the beginning of each copy over the link's stream `way`, in its thread."""
    true = OneWay.copy

    def watched(link, target, source):
        if link.stream.name == way:
            before()
        true(link, target, source)

    monkeypatch.setattr(OneWay, "copy", watched)


def hold_until_all_is_issued(engine, monkeypatch, way, program):
    """Hold each copy `way` until the next run of `program` is fully issued and compute has run all that it can."""
    compute, issued = stream_of(engine, "compute"), enqueued(engine)

    def hold():
        while len(issued) < len(program):
            time.sleep(0.001)
        let_through(compute)

    watch_copies(monkeypatch, way, hold)


async def test_the_host_waits_for_a_pending_upload_before_it_overwrites_the_tile(one_worker, monkeypatch):
    a, b = tiles = standing("a", "b")
    program = program_of(copy(a, b), on_host(gelu(b, a)))
    async with Engine("emulated", device_memory=4 * NBYTES) as engine:
        engine.plays = False
        await prepared(engine, program, tiles)
        assert await run(engine, program, tiles) is None
        before = await runtime_of(engine).read(a)
        hold_until_all_is_issued(engine, monkeypatch, "upload", program)
        assert await run(engine, program, tiles) is None
        assert np.array_equal(await runtime_of(engine).read(b), before)
        assert not np.array_equal(await runtime_of(engine).read(a), before)


async def test_the_host_waits_for_a_pending_download_before_it_reads_the_tile(one_worker, monkeypatch):
    a, b, c = tiles = standing("a", "b", "c")
    program = program_of(gelu(a, b), on_host(copy(b, c)))
    async with Engine("emulated", device_memory=4 * NBYTES) as engine:
        engine.plays = False
        await prepared(engine, program, tiles)
        assert await run(engine, program, tiles) is None
        with monkeypatch.context() as patch:
            hold_until_all_is_issued(engine, patch, "download", program)
            assert await run(engine, program, tiles) is None
        found = await runtime_of(engine).read_all(tiles)
    assert np.array_equal(found[1], found[2])


class Raises:
    """A kernel that fails at its n-th call."""

    def __init__(self, engine, kernel, n):
        self.true, self.left = runtime_of(engine).device.kernels[kernel], n
        runtime_of(engine).device.kernels[kernel] = self
        self.__name__ = kernel

    def __call__(self, *args):
        self.left -= 1
        if self.left == 0:
            raise FloatingPointError("the kernel broke")
        self.true(*args)


async def test_an_error_on_the_host_reaches_only_work_that_depends_on_it(tmp_path):
    a, b, c, d = tiles = standing("a", "b", "c", "d")
    program = program_of(copy(a, d), on_host(gelu(a, b)), copy(b, c))
    async with engine_for(Matmul(), tmp_path, "emulated", 4, 6) as engine:
        bytes_of = await prepared(engine, program, tiles)
        Raises(engine, "gelu", 1)
        error, lost = await run(engine, program, tiles)
        assert isinstance(error, FloatingPointError)
        assert lost == {"b", "c"}
        assert np.array_equal(await runtime_of(engine).read(a), bytes_of[a])
        assert np.array_equal(await runtime_of(engine).read(d), bytes_of[a])
        with pytest.raises(AsynctileError, match="b was never written"):
            await runtime_of(engine).read(b)
        assert runtime_of(engine).assembly.inputs.missing(on_host(copy(b, d))) is b
        assert await run(engine, program, tiles) is None
        assert np.array_equal(await runtime_of(engine).read(c), await runtime_of(engine).read(b))


async def test_an_error_on_the_device_reaches_the_host_through_the_download():
    a, b, c = tiles = standing("a", "b", "c")
    program = program_of(gelu(a, b), on_host(copy(b, c)))
    async with Engine("emulated", device_memory=4 * NBYTES) as engine:
        await prepared(engine, program, tiles)
        Raises(engine, "gelu", 1)
        error, lost = await run(engine, program, tiles)
        assert isinstance(error, FloatingPointError)
        assert lost == {"b", "c"}


async def test_an_error_of_the_host_fails_the_run_even_if_nothing_depends_on_it():
    a, b, c = tiles = standing("a", "b", "c")
    program = program_of(on_host(gelu(a, b)), copy(a, c))
    async with Engine("emulated", device_memory=4 * NBYTES) as engine:
        await prepared(engine, program, tiles)
        Raises(engine, "gelu", 1)
        error, lost = await run(engine, program, tiles)
    assert isinstance(error, FloatingPointError)
    assert lost == {"b"}


async def test_stale_bytes_in_ram_do_not_replace_a_failed_result_of_the_device():
    a, b, c = tiles = standing("a", "b", "c")
    program = program_of(copy(b, c), gelu(a, b))
    async with Engine("emulated", device_memory=4 * NBYTES) as engine:
        await prepared(engine, program, tiles)
        Raises(engine, "gelu", 1)
        _, lost = await run(engine, program, tiles)
        assert lost == {"b"}
        for operation in (copy(b, a), on_host(copy(b, c))):
            assert runtime_of(engine).assembly.inputs.missing(operation) is b
        with pytest.raises(AsynctileError, match="b was never written"):  # and not after a wait for a writer
            await run(engine, program, tiles)


async def test_without_prefetch_operations_of_the_host_and_loads_take_turns(one_worker, monkeypatch):
    tiles = standing(*(f"t{index}" for index in range(13)))
    program = program_of(*(
        operation
        for x, y, z in zip(tiles[::3], tiles[1::3], tiles[2::3], strict=False)
        for operation in (copy(x, tiles[12]), on_host(gelu(y, z)))
    ))
    loads, on_the_host = [], []
    async with Engine("emulated", device_memory=4 * NBYTES, prefetch=0) as engine:
        engine.plays = False
        await prepared(engine, program, tiles)
        assert await run(engine, program, tiles) is None
        uploads, compute, issued = stream_of(engine, "upload"), stream_of(engine, "compute"), enqueued(engine)
        gelu_alone = runtime_of(engine).device.kernels["gelu"]

        def beside(kind, others, stream):
            """Begin one of `kind`, and give the stream of `others` time for all that it could run now."""
            kind.append(None)
            before = len(others)
            while len(issued) < len(program):
                time.sleep(0.001)
            let_through(stream)
            assert len(others) == before

        def gelu_watched(*args):
            beside(on_the_host, loads, uploads)
            gelu_alone(*args)

        runtime_of(engine).device.kernels["gelu"] = gelu_watched
        watch_copies(monkeypatch, "upload", lambda: beside(loads, on_the_host, compute))
        assert await run(engine, program, tiles) is None
    assert len(loads) >= 2 and len(on_the_host) == 4


async def test_a_kernel_that_hangs_on_the_host_is_named():
    a, b = tiles = standing("a", "b")
    program, gate = program_of(on_host(gelu(a, b))), threading.Event()
    async with Engine("emulated", watchdog=None) as engine:
        runtime_of(engine).device.kernels["gelu"] = lambda *args: gate.wait()
        await prepared(engine, program, tiles)
        watch(engine, 0.2)
        async with asyncio.timeout(HANG_S):
            error, _ = await run(engine, program, tiles)
        gate.set()
    assert isinstance(error, StalledError)
    assert "gelu(a, b) has run on compute" in str(error)


async def test_a_slow_operation_of_the_host_does_not_delay_the_device():
    a, b, c, d = tiles = standing("a", "b", "c", "d")
    many = [fill(c, 1.0) for _ in range(3 * RUN_AHEAD_OPERATIONS)]
    program, gate = program_of(on_host(gelu(a, b)), *many, copy(c, d)), threading.Event()
    done = threading.Event()
    async with Engine("emulated") as engine:
        runtime_of(engine).device.kernels["gelu"] = lambda *args: gate.wait(HANG_S)
        true = runtime_of(engine).device.kernels["copy"]
        runtime_of(engine).device.kernels["copy"] = lambda *args: (true(*args), done.set())
        await prepared(engine, program, tiles)
        running = asyncio.create_task(run(engine, program, tiles))
        assert await asyncio.to_thread(done.wait, HANG_S)
        gate.set()
        assert await running is None


async def test_the_run_ahead_of_the_host_is_bounded():
    a, b = tiles = standing("a", "b")
    program, gate = program_of(*(on_host(gelu(a, b)) for _ in range(3 * RUN_AHEAD_OPERATIONS))), threading.Event()
    async with Engine("emulated") as engine:
        runtime_of(engine).device.kernels["gelu"] = lambda *args: gate.wait(HANG_S)
        await prepared(engine, program, tiles)
        issued = enqueued(engine)
        running = asyncio.create_task(run(engine, program, tiles))
        await until(lambda: len(issued) >= RUN_AHEAD_OPERATIONS)
        await settle(engine)
        ahead = len(issued)
        gate.set()
        assert await running is None
    assert ahead == RUN_AHEAD_OPERATIONS


async def test_a_launch_waits_for_the_program_that_writes_its_input():
    a, b, c, d = tiles = standing("a", "b", "c", "d")
    program, other = program_of(copy(a, b)), program_of(copy(a, d))
    async with Engine("emulated", device_memory=4 * NBYTES, watchdog=60) as engine:
        bytes_of = values(tiles)
        await runtime_of(engine).reserve(demand_of([program, other], tiles))
        await runtime_of(engine).store([(a, bytes_of[a])])
        consumer = asyncio.create_task(runtime_of(engine).launch(copy(b, c)))
        assert await run(engine, other, tiles) is None
        await settle(engine)
        assert not consumer.done()
        assert await run(engine, program, tiles) is None
        await consumer
        await runtime_of(engine).synchronize()
        assert np.array_equal(await runtime_of(engine).read(c), bytes_of[a])


async def test_ram_too_small_for_an_operation_is_refused_before_anything_moves(tmp_path):
    work = Matmul(on_host=lambda i, j, k: (i, j, k) == (0, 0, 2))
    async with engine_for(work, tmp_path, "emulated", 6, 2) as engine:
        with pytest.raises(BudgetError, match=r"host_memory .* gemm of a\[0,2\] needs 3 slots") as caught:
            await work.prepare(engine)
        assert caught.value.floor == 3 * 4096
        assert engine.statistics().host_peak_bytes == 0
    without = Matmul()
    async with engine_for(without, tmp_path, "emulated", 6, 1) as engine:
        await without.prepare(engine)


async def test_with_ram_as_the_device_the_floor_counts_operations_of_the_host(tmp_path):
    work = Matmul(on_host=lambda i, j, k: True)
    async with engine_for(work, tmp_path, "cpu", None, 2) as engine:
        with pytest.raises(BudgetError, match=r"host_memory .* gemm of a\[0,0\] needs 3 slots") as caught:
            await work.prepare(engine)
        assert caught.value.floor == 3 * 4096
