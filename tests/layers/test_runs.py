"""`Trainer.run` over batches of every kind: a cancelled run loses none, and its thread ends with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from asynctile import Engine
from asynctile.layers import Trainer
from asynctile.layers.model import model_state_of
from tests.layers.disturbances import BATCHES, Hang, trainer_on, uninterrupted
from tests.layers.training import assert_same_tensors, states_of
from tests.settle import HANG_S, settle, until


async def test_run_takes_lists_generators_async_generators_and_awaitable_items() -> None:
    async def later() -> AsyncIterator[Any]:
        for batch in BATCHES[:2]:
            await asyncio.sleep(0)
            yield batch

    async def one(index: int) -> Any:
        return BATCHES[index]

    sources: dict[str, Callable[[], Any]] = {
        "list": lambda: BATCHES[:2],
        "generator": lambda: (batch for batch in BATCHES[:2]),
        "async generator": later,
        "coroutines": lambda: (one(index) for index in range(2)),
    }
    losses = set()
    async with Engine("cpu") as engine:
        for source in sources.values():
            trainer = await trainer_on(engine)
            reports = [report async for report in trainer.run(source())]
            assert [report.step for report in reports] == [1, 2]
            losses.add(tuple(report.loss for report in reports))
            await trainer.model.release()
    assert len(losses) == 1


async def test_run_takes_batches_in_a_thread_and_loses_none_to_a_cancellation() -> None:
    reached, go, threads = asyncio.Event(), threading.Event(), set()
    loop = asyncio.get_running_loop()

    def slow() -> Any:
        for index, batch in enumerate(BATCHES[:3]):
            threads.add(threading.current_thread())
            if index == 1:
                loop.call_soon_threadsafe(reached.set)
                assert go.wait(HANG_S)
            yield batch

    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        run = trainer.run(slow())
        assert (await anext(run)).step == 1
        waiting = asyncio.ensure_future(anext(run))
        await reached.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.set()
        for kernel, counts in (("gelu", 1), ("adamw", 2)):
            hang = Hang(engine, kernel, 1)
            step = asyncio.ensure_future(anext(run))
            await hang.reached()
            step.cancel()
            await settle(engine)
            hang.release()
            with pytest.raises(asyncio.CancelledError):
                await step
            assert trainer.step_count == counts
        assert [report.step async for report in run] == [3]
        found = await states_of(trainer)
    assert len(threads) == 1 and threading.current_thread() not in threads
    assert_same_tensors(found, await uninterrupted(3))


async def test_run_stops_after_its_steps_and_takes_no_batch_too_many() -> None:
    taken = iter(BATCHES)
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        assert [report.step async for report in trainer.run(taken, steps=2)] == [1, 2]
        assert next(taken) is BATCHES[2]
        assert [report.step async for report in trainer.run(taken, steps=0)] == []
        assert [report.step async for report in trainer.run(taken)] == [3]
        with pytest.raises(TypeError, match="int"):
            async for _ in trainer.run(3):
                pass


@pytest.mark.parametrize("kind", ["async generator", "awaitable items"])
async def test_a_run_cancelled_while_it_waits_for_a_batch_loses_none(kind: str) -> None:
    waits, go = asyncio.Event(), asyncio.Event()

    async def late(batch: Any) -> Any:
        waits.set()
        await go.wait()
        return batch

    async def generator() -> Any:
        for batch in BATCHES[:2]:
            yield await late(batch)

    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        run = trainer.run(generator() if kind == "async generator" else [late(batch) for batch in BATCHES[:2]])
        for _ in range(2):
            waiting = asyncio.ensure_future(anext(run))
            await waits.wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        go.set()
        assert [report.step async for report in run] == [1, 2]
        found = await states_of(trainer)
    assert_same_tensors(found, await uninterrupted(2))


async def test_a_run_keeps_its_batch_when_a_step_of_another_counts_meanwhile() -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        run = trainer.run(iter(BATCHES[1:2]))
        hang = Hang(engine, "adamw", 1)
        other = asyncio.ensure_future(trainer.step(*BATCHES[0]))
        await hang.reached()
        mine = asyncio.ensure_future(anext(run))
        await until(lambda: model_state_of(trainer.model).changing.waiting)  # the batch is taken, and its step not begun
        mine.cancel()
        hang.release()
        await other
        with pytest.raises(asyncio.CancelledError):
            await mine
        assert [report.step async for report in run] == [2]
        found = await states_of(trainer)
    assert_same_tensors(found, await uninterrupted(2))


def run_and_thread(trainer: Trainer, steps: int | None) -> tuple[Any, threading.Thread]:
    """Begin a run and return it with the thread that advances its batches."""
    before = {*threading.enumerate()}
    run = trainer.run(list(BATCHES[:2]), steps=steps)
    (thread,) = {*threading.enumerate()} - before
    return run, thread


async def test_the_thread_of_a_run_ends_with_its_batches_its_steps_or_the_engine() -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        (whole, its), (some, other), (begun, last) = [run_and_thread(trainer, steps) for steps in (None, 1, None)]
        assert [report.step async for report in whole] == [1, 2]
        assert [report.step async for report in some] == [3]
        for run, thread in ((whole, its), (some, other)):
            thread.join(HANG_S)
            assert not thread.is_alive()
            with pytest.raises(StopAsyncIteration):
                await anext(run)
        await anext(begun)
        assert last.is_alive()
    assert not last.is_alive()
    with pytest.raises(StopAsyncIteration):
        await anext(begun)
