"""Opening and closing an engine with cancellations at any turn, callers that go away, and the holder of a stuck engine."""

import asyncio
import gc
import sys
import threading
from contextlib import nullcontext

import pytest
from threadpoolctl import threadpool_info

from asynctile import DeviceError, Engine, StalledError
from asynctile.loop.exclusive import Exclusive
from asynctile.program.needs import demand_of
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile
from tests.settle import HANG_S, until


def threads():
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("asynctile"))


def blas():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


@pytest.mark.parametrize("times", [1, 3])
async def test_closing_is_complete_however_often_it_is_cancelled(tmp_path, times):
    before = blas()
    for turns in range(8):
        inside = asyncio.Event()

        async def live(inside=inside):
            async with Engine("cpu", host_memory="64MiB", spill=tmp_path):
                inside.set()

        task = asyncio.create_task(live())
        await inside.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        met = False
        for _ in range(times):
            met = task.cancel() or met  # closing may be done by then
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError) if met else nullcontext():
            await task
        assert met or turns
        assert (threads(), blas()) == ([], before)


async def test_a_job_that_runs_when_the_engine_closes_is_told_so():
    began = asyncio.Event()

    async def job():
        loop.call_soon_threadsafe(began.set)
        await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    async with Engine("cpu") as engine:
        call = asyncio.create_task(runtime_of(engine).call(job()))
        await began.wait()
    with pytest.raises(DeviceError, match="was closed while this ran"):
        await call


@pytest.mark.parametrize("moment", ["under way", "just made"])
async def test_a_result_made_for_a_cancelled_caller_is_undone(moment):
    undone, made, caller = [], threading.Event(), []

    async def job():
        if moment == "under way":
            here.call_soon_threadsafe(caller[0].cancel)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
        made.set()
        return "a model"

    async def undo(what):
        undone.append(what)

    here = asyncio.get_running_loop()
    async with Engine("cpu") as engine:
        caller.append(asyncio.create_task(runtime_of(engine).call(job(), undo)))
        if moment == "just made":
            await asyncio.sleep(0)
            assert made.wait(HANG_S)  # without a turn of this loop: the result has not arrived
            caller[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller[0]
    assert undone == ["a model"]


async def test_a_caller_whose_loop_ends_in_mid_call_disturbs_nobody_and_its_result_is_undone(caplog):
    began, go_on, undone = threading.Event(), threading.Event(), threading.Event()

    async def job():
        began.set()
        await asyncio.to_thread(go_on.wait, HANG_S)

    async def undo(_):
        undone.set()

    def elsewhere():
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)
        task = loop.create_task(runtime_of(engine).call(job(), undo))
        loop.call_soon(lambda: (began.wait(HANG_S), loop.stop()))
        loop.run_forever()
        loop.close()
        assert not task.done()

    async def answer():
        return 42

    async with Engine("cpu") as engine:
        await asyncio.to_thread(elsewhere)
        assert await runtime_of(engine).call(answer()) == 42
        go_on.set()
        assert await asyncio.to_thread(undone.wait, HANG_S)
        assert await runtime_of(engine).call(answer()) == 42
        gc.collect()
    assert not caplog.records


@pytest.mark.parametrize("then", ["cancelled again", "thrown away"])
async def test_undoing_for_a_cancelled_caller_completes_whatever_else_befalls_the_caller(then, caplog):
    go_on, over, outcome = threading.Event(), threading.Event(), []

    def elsewhere():
        async def job():
            loop.call_soon_threadsafe(task.cancel)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "a model"

        async def undo(_):
            loop.call_soon_threadsafe(loop.stop)
            try:
                await asyncio.to_thread(go_on.wait, HANG_S)
                outcome.append("undone")
            finally:
                over.set()

        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)
        caller = runtime_of(engine).call(job(), undo)
        task = loop.create_task(caller)
        loop.run_forever()
        if then == "cancelled again":
            task.cancel()
            loop.call_later(0.05, go_on.set)
            with pytest.raises(asyncio.CancelledError):
                loop.run_until_complete(task)
        else:
            caller.close()
        loop.close()

    async def answer():
        return 42

    async with Engine("cpu") as engine:
        await asyncio.to_thread(elsewhere)
        assert await runtime_of(engine).call(answer()) == 42
        go_on.set()
        assert await asyncio.to_thread(over.wait, HANG_S)
    assert outcome == ["undone"]
    assert not caplog.records


async def test_a_job_that_holds_the_engine_for_ever_is_named():
    async def holds():
        async with runtime_of(engine).exclusive():
            here.call_soon_threadsafe(held.set)
            await asyncio.Event().wait()

    here, held = asyncio.get_running_loop(), asyncio.Event()
    async with Engine("cpu", watchdog=0.2) as engine:
        call = asyncio.create_task(runtime_of(engine).call(holds()))
        await held.wait()
        with pytest.raises(StalledError, match=r"Runtime\.synchronize waits for the engine, which is held by .*holds"):
            await runtime_of(engine).synchronize()
        call.cancel()
        await asyncio.wait([call])
        await runtime_of(engine).synchronize()


async def test_a_cancelled_waiter_holds_nothing_and_the_others_come_in_order():
    order = []

    async def job():
        lock = Exclusive("it", runtime_of(engine).tiers.run_ahead)

        async def wait(name):
            async with lock.held():
                order.append(name)
                await asyncio.sleep(0)

        async with lock.held():
            waiting = [asyncio.create_task(wait(name)) for name in "abcd"]
            await asyncio.sleep(0)
            waiting[1].cancel()
        waiting[0].cancel()  # in the turn in which it was granted
        await asyncio.wait(waiting)
        return lock.holder

    async with Engine("cpu") as engine:
        assert await runtime_of(engine).call(job()) is None
    assert order == ["c", "d"]


async def test_lent_ram_that_is_never_given_back_is_named(tmp_path):
    async def borrow(engine):
        async with runtime_of(engine).exclusive():
            return runtime_of(engine).tiers.caps.borrow(30 << 20, "somebody")

    async with Engine("cpu", host_memory="32MiB", watchdog=0.2) as engine:
        loan = await runtime_of(engine).call(borrow(engine))
        demand = demand_of([], [Tile(f"t{index}", (512, 1024), persistent=True) for index in range(4)])
        with pytest.raises(StalledError, match=r"Runtime\.reserve waits for RAM, but 30.00 MiB is lent to somebody"):
            await runtime_of(engine).reserve(demand)
        await runtime_of(engine).call(give_back(loan))
        await runtime_of(engine).reserve(demand)


async def give_back(loan):
    loan.give_back()


async def test_an_engine_closes_even_if_its_users_block_fails_when_thrown_away(monkeypatch):
    """A block inside that cannot end without its loop raises something other than GeneratorExit."""

    async def live():
        async with Engine("cpu"):
            inside.set()
            try:
                await asyncio.Event().wait()
            finally:
                asyncio.get_running_loop()

    def elsewhere():
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)
        task = loop.create_task(live())
        while not inside.is_set():
            loop.call_later(0.001, loop.stop)
            loop.run_forever()
        loop.close()
        del task
        gc.collect()

    before, inside, ignored = blas(), threading.Event(), []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    await asyncio.to_thread(elsewhere)
    await until(lambda: (threads(), blas()) == ([], before))
    assert len(ignored) == 1
