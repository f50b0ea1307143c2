"""An engine opened and closed by calls, for programs without a block around its use: it ends whole in any order of calls.

Cancellation at every turn of a block is tested in test_lifetime.py.
"""

import asyncio
import random
import threading

import pytest

from asynctile import DeviceError, Engine
from asynctile.events import Closing
from asynctile.share import runtime_of
from tests.inside_engine import device_of
from tests.settle import HANG_S, turns, until
from tests.test_lifetime import blas, threads

TWICE = "an engine opens once: make a new Engine to go on"


async def answer():
    return 42


async def test_an_engine_opened_by_a_call_works_until_a_call_closes_it(tmp_path):
    before = blas()
    engine = Engine("cpu", host_memory="64MiB", spill=tmp_path)
    assert not engine.is_open
    assert await engine.open() is engine
    assert engine.is_open
    assert await runtime_of(engine).call(answer()) == 42
    await engine.aclose()
    assert not engine.is_open
    assert (threads(), blas()) == ([], before)
    with pytest.raises(DeviceError, match="the engine is not open, because it was closed"):
        await runtime_of(engine).call(answer())
    async with Engine("cpu", host_memory="64MiB", spill=tmp_path) as other:  # the folder is free again
        assert other.is_open


async def test_a_second_opening_is_refused_and_disturbs_nothing():
    engine = Engine("cpu")
    both = await asyncio.gather(engine.open(), engine.open(), return_exceptions=True)
    assert both[0] is engine
    assert (type(both[1]), str(both[1])) == (DeviceError, TWICE)
    with pytest.raises(DeviceError, match=TWICE):
        async with engine:
            raise AssertionError("opened twice")
    assert await runtime_of(engine).call(answer()) == 42
    await engine.aclose()
    with pytest.raises(DeviceError, match=TWICE):
        await engine.open()


async def test_closing_twice_also_inside_its_own_block_closes_once():
    async with Engine("cpu") as engine:
        await engine.aclose()
        await engine.aclose()
        assert not engine.is_open
    await engine.aclose()
    assert threads() == []


async def test_an_engine_that_is_closed_before_it_was_opened_stays_closed():
    for engine in (Engine("cpu"), Engine("emulated", device_memory="1MiB")):
        await engine.aclose()
        with pytest.raises(DeviceError, match=TWICE):
            await engine.open()
        assert not engine.is_open
    assert threads() == []


def held_up(engine):
    """Make a background job that closing waits for.

    Returns the coroutine that spawns it, the event that ends it, and a list that notes its cancellation.
    """
    go_on, cancelled = threading.Event(), []

    async def background():
        try:
            await asyncio.to_thread(go_on.wait, HANG_S)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        finally:
            go_on.set()

    async def spawn():
        runtime_of(engine).spawn(background())

    return spawn(), go_on, cancelled


async def test_a_second_close_waits_for_the_first_from_any_loop():
    engine = await Engine("cpu").open()
    spawn, go_on, cancelled = held_up(engine)
    await runtime_of(engine).call(spawn)
    reader = engine.events()
    elsewhere = threading.Event()

    async def close_elsewhere():
        closing = asyncio.create_task(engine.aclose())
        await turns()
        elsewhere.set()
        await closing

    closings = [asyncio.create_task(engine.aclose()), asyncio.create_task(asyncio.to_thread(asyncio.run, close_elsewhere()))]
    await until(elsewhere.is_set)
    assert type(await anext(reader)) is Closing
    assert not any(task.done() for task in closings)
    go_on.set()
    await asyncio.gather(*closings)
    assert (threads(), cancelled) == ([], [])


@pytest.mark.parametrize("which", [0, 1])
async def test_a_cancelled_close_stops_the_background_and_is_complete_for_every_waiter(which):
    engine = await Engine("cpu").open()
    spawn, _, cancelled = held_up(engine)
    await runtime_of(engine).call(spawn)
    closings = [asyncio.create_task(engine.aclose()) for _ in range(2)]
    await turns()
    closings[which].cancel()
    ends = await asyncio.gather(*closings, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError if index == which else type(None) for index in range(2)]
    assert (threads(), cancelled) == ([], [True])


@pytest.mark.parametrize("compiled", ["all", "not all"])
async def test_an_engine_that_is_closed_while_it_opens_is_never_open(compiled):
    engine, warms, go_on, stopped = Engine("cpu"), threading.Event(), threading.Event(), []

    def warm(report, stop):
        warms.set()
        assert go_on.wait(HANG_S)
        assert stop.wait(HANG_S)
        stopped.append(True)
        return compiled == "all"

    device_of(engine).warm = warm
    opening = asyncio.create_task(engine.open())
    await until(warms.is_set)
    closing = asyncio.create_task(engine.aclose())
    await turns()
    assert not closing.done()
    go_on.set()
    with pytest.raises(DeviceError, match="the engine was closed while it opened: make a new Engine to go on"):
        await opening
    await closing
    assert (engine.is_open, stopped, threads()) == (False, [True], [])


async def test_an_engine_whose_opening_failed_may_be_closed(tmp_path):
    engine = Engine("cpu", spill=tmp_path / "missing")
    reader = engine.events()
    with pytest.raises(Exception, match="missing"):
        await engine.open()
    assert [event async for event in reader] == []
    await engine.aclose()
    assert (engine.is_open, threads()) == (False, [])


async def test_closing_raises_the_error_of_a_background_task_once():
    go_on = threading.Event()

    async def fails():
        await asyncio.to_thread(go_on.wait, HANG_S)
        raise FloatingPointError("behind")

    async def spawn():
        runtime_of(engine).spawn(fails())

    engine = await Engine("cpu").open()
    await runtime_of(engine).call(spawn())
    loop = runtime_of(engine).life.open_loop().loop
    closing = asyncio.create_task(engine.aclose())
    await until(lambda: any("_wind_down" in repr(task) for task in asyncio.all_tasks(loop)))
    go_on.set()
    with pytest.raises(FloatingPointError, match="behind"):
        await closing
    await engine.aclose()


async def test_a_job_cannot_close_the_engine_that_would_wait_for_it():
    async with Engine("cpu") as engine:
        with pytest.raises(DeviceError, match="cannot be closed by a job that runs on it"):
            await runtime_of(engine).call(engine.aclose())
        assert await runtime_of(engine).call(answer()) == 42


@pytest.mark.parametrize("way", ["open", "aclose"])
async def test_a_caller_whose_loop_ends_midway_leaves_a_closed_engine(way):
    engine, go_on, began = Engine("cpu"), threading.Event(), threading.Event()
    if way == "aclose":
        await engine.open()
        spawn, go_on, _ = held_up(engine)
        await runtime_of(engine).call(spawn)
        began.set()
    else:
        warm = device_of(engine).warm

        def held(report, stop):
            began.set()
            assert go_on.wait(HANG_S)
            return warm(report, stop)

        device_of(engine).warm = held

    def elsewhere():
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)
        task = loop.create_task(getattr(engine, way)())
        loop.run_until_complete(turns())
        assert began.wait(HANG_S)
        loop.close()
        task.get_coro().close()

    await asyncio.to_thread(elsewhere)
    go_on.set()
    await until(lambda: threads() == [])
    assert not engine.is_open
    await engine.aclose()


@pytest.mark.parametrize("seed", range(10))
async def test_opening_closing_cancelling_and_reading_in_any_order_leaves_nothing(seed, tmp_path):
    chance = random.Random(seed)
    engine = Engine("cpu", host_memory="16MiB", spill=tmp_path)

    async def opened():
        await engine.open()
        await runtime_of(engine).call(asyncio.sleep(0))

    async def read(limit):
        return [event async for event in engine.events(limit)]

    readers = [asyncio.create_task(read(limit)) for limit in (1, 1000)]
    calls = [asyncio.create_task(opened()), *(asyncio.create_task(engine.aclose()) for _ in range(chance.randrange(3)))]
    chance.shuffle(calls)
    for call in calls:
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)
        if chance.random() < 0.6:
            call.cancel()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(end is None or isinstance(end, DeviceError | asyncio.CancelledError) for end in ends), ends
    await engine.aclose()
    await asyncio.gather(*readers)
    assert (engine.is_open, runtime_of(engine).tell.is_heard, threads(), list(tmp_path.iterdir())) == (False, False, [], [])


async def test_a_share_is_open_until_it_ends():
    async with Engine("cpu", host_memory="64MiB") as engine:
        async with engine.share(host_memory="8MiB") as part:
            assert part.is_open
        assert (part.is_open, engine.is_open) == (False, True)


async def test_shares_have_names_of_their_own():
    async with (
        Engine("cpu", host_memory="64MiB") as engine,
        engine.share(host_memory="8MiB") as first,
        engine.share(host_memory="8MiB", name="chat") as chat,
    ):
        assert [share.name for share in engine.shares] == ["engine", "share-1", "chat"]
        assert engine.shares == (engine, first, chat)
        for taken in ("chat", "engine", "share-1"):
            with pytest.raises(ValueError, match=f"another share is named '{taken}': .* other than chat, engine, share-1"):
                async with engine.share(host_memory="8MiB", name=taken):
                    raise AssertionError("lent")
        async with engine.share(host_memory="8MiB", name="share-2"), engine.share(host_memory="8MiB") as third:
            assert third.name == "share-3"
        assert len(engine.shares) == 3
