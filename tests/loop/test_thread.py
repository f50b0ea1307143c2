"""Jobs on a loop in a thread of its own."""

import asyncio
import threading

import pytest

from asynctile.loop.thread import LoopThread


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(request):
    made = LoopThread() if request.param == "uvloop" else LoopThread(asyncio.new_event_loop)
    made.start()
    yield made
    made.close()


async def test_a_job_runs_in_the_other_thread_and_its_result_comes_back(loop):
    async def job():
        return threading.current_thread().name

    assert await loop.call(job()) == "asynctile-loop"


async def test_an_exception_of_a_job_is_raised_at_the_caller(loop):
    async def job():
        raise KeyError("x")

    with pytest.raises(KeyError):
        await loop.call(job())


async def test_a_cancelled_caller_waits_until_the_job_has_wound_down(loop):
    began, ended = threading.Event(), []

    async def job():
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    call = asyncio.create_task(loop.call(job()))
    await asyncio.to_thread(began.wait)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended == [True]


async def test_a_job_that_finishes_despite_cancellation_still_raises_it_at_the_caller(loop):
    began, finish = threading.Event(), threading.Event()
    done = []

    async def job():
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.to_thread(finish.wait)
            done.append(True)

    call = asyncio.create_task(loop.call(job()))
    await asyncio.to_thread(began.wait)
    call.cancel()
    finish.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert done == [True]


async def test_an_error_while_winding_down_is_not_hidden_by_the_cancellation(loop):
    began = threading.Event()

    async def job():
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("torn") from None

    call = asyncio.create_task(loop.call(job()))
    await asyncio.to_thread(began.wait)
    call.cancel()
    with pytest.raises(RuntimeError, match="torn"):
        await call
