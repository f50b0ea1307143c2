"""Readers of events without an engine: the events a reader gets and misses, and that it leaves nothing behind.

The events of an engine are tested in tests/test_events.py.
"""

import asyncio
import gc
import threading
import weakref
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.events import Closing, Fault
from asynctile.hub import ENGINE, Hub, Tell
from asynctile.loop.thread import new_loop
from tests.settle import turns, until


def tell_all(hub, *texts):
    tell = Tell(hub, ENGINE)
    for text in texts:
        tell(Fault, kind="retry", text=text)


async def rest(reader):
    """Return all events that are left for the reader; waits for ever unless the hub is closed."""
    return [event async for event in reader]


async def rest_of_all(readers):
    return [await rest(reader) for reader in readers]


async def test_every_reader_gets_everything_in_order_and_ends_with_the_hub():
    hub = Hub()
    one, other = hub.reader(), hub.reader()
    tell_all(hub, "a", "b")
    hub.close()
    for reader in (one, other):
        events = await rest(reader)
        assert [(event.text, event.share, event.dropped) for event in events] == [("a", ENGINE, 0), ("b", ENGINE, 0)]
        assert events[0].at <= events[1].at
    assert await rest(one) == []


async def test_an_event_cannot_be_changed():
    hub = Hub()
    reader = hub.reader()
    Tell(hub, "part")(Closing)
    event = await anext(reader)
    assert event.share == "part"
    with pytest.raises(FrozenInstanceError):
        event.at = 0.0


async def test_events_before_the_first_reader_are_dropped_and_readers_of_a_closed_hub_end():
    hub = Hub()
    tell_all(hub, "before")
    reader = hub.reader()
    hub.close()
    assert await rest(reader) == []
    assert await rest(hub.reader()) == []


def test_nothing_is_built_while_nobody_listens():
    built, hub = [], Hub()
    tell = Tell(hub, ENGINE)
    tell(built.append)
    assert (built, tell.is_heard) == ([], False)
    reader = hub.reader()
    assert tell.is_heard
    tell(lambda share: built.append(share))
    assert built == [ENGINE]
    del reader
    assert not tell.is_heard


@given(st.integers(1, 5), st.lists(st.integers(0, 7)))
def test_when_too_many_wait_the_oldest_events_go_and_the_next_one_read_counts_them(limit, bursts):
    async def read():
        hub, told = Hub(), 0
        slow, quick = hub.reader(limit), hub.reader(1000)
        for burst in bursts:
            for _ in range(burst):
                tell_all(hub, str(told))
                told += 1
            got = [await anext(slow) for _ in range(min(burst, limit))]
            assert [int(event.text) for event in got] == list(range(told - len(got), told))
            assert [event.dropped for event in got] == [max(burst - limit, 0)] * bool(got) + [0] * (len(got) - 1)
        hub.close()
        assert [int(event.text) for event in await rest(quick)] == list(range(told))

    asyncio.run(read())


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "many"])
def test_an_invalid_limit_is_refused(limit):
    with pytest.raises(ValueError, match=r"limit is .*: expected how many events may wait for their reader, at least 1"):
        Hub().reader(limit)


async def test_any_thread_wakes_a_waiting_reader_and_a_cancelled_wait_loses_nothing():
    hub = Hub()
    reader = hub.reader()
    for text in ("a", "b"):
        given_up = asyncio.create_task(anext(reader))
        await turns()
        given_up.cancel()
        await asyncio.wait([given_up])
        waits = asyncio.create_task(anext(reader))
        await turns()
        thread = threading.Thread(target=tell_all, args=(hub, text))
        thread.start()
        assert (await waits).text == text
        thread.join()


async def test_two_tasks_cannot_wait_for_the_same_reader():
    hub = Hub()
    reader = hub.reader()
    first = asyncio.create_task(anext(reader))
    await turns()
    with pytest.raises(RuntimeError, match=r"another task: give each its own engine\.events"):
        await anext(reader)
    tell_all(hub, "a")
    assert (await first).text == "a"


@pytest.mark.parametrize("end", ["closed", "cancelled", "left"])
async def test_a_reader_that_has_gone_leaves_nothing_behind(end):
    hub, seen = Hub(), []

    async def read(reader):
        async for event in reader:
            seen.append(event.text)
            if end == "left":
                return

    reader = hub.reader()
    gone, task = weakref.ref(reader), asyncio.create_task(read(reader))
    await turns()
    tell_all(hub, "a")
    await until(lambda: seen)
    if end == "closed":
        tell_all(hub, "unread")
        await reader.aclose()
        await reader.aclose()
        assert await rest(reader) == []
    if end == "cancelled":
        task.cancel()
    await asyncio.wait([task])
    del reader, task
    gc.collect()
    assert (gone(), hub.is_heard) == (None, False)
    tell_all(hub, "b")
    assert seen == ["a"]


async def test_a_reader_that_is_closed_while_a_task_waits_for_it_ends_that_task():
    hub = Hub()
    reader = hub.reader()
    task = asyncio.create_task(rest(reader))
    await turns()
    await reader.aclose()
    assert await task == []


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, new_loop])
def test_a_reader_whose_loop_closes_while_it_waits_is_forgotten_and_the_others_go_on(make_loop):
    hub = Hub()
    dead, other = hub.reader(), hub.reader()
    loop = make_loop()
    loop.set_exception_handler(lambda *_: None)
    task = loop.create_task(rest(dead))
    loop.run_until_complete(turns())
    loop.close()
    tell_all(hub, "a", "b")
    hub.close()
    assert asyncio.run(rest(dead)) == []
    assert [event.text for event in asyncio.run(rest(other))] == ["a", "b"]
    assert not task.done()
    task.get_coro().close()


async def test_many_threads_may_tell_at_once():
    hub, told = Hub(), 200
    reader = hub.reader(10_000)
    names = "abcd"
    threads = [threading.Thread(target=tell_all, args=(hub, *(f"{name}{n}" for n in range(told)))) for name in names]
    for thread in threads:
        thread.start()
    texts = [(await anext(reader)).text for _ in range(told * len(names))]
    for thread in threads:
        thread.join()
    for name in names:
        assert [text for text in texts if text[0] == name] == [f"{name}{n}" for n in range(told)]


def test_a_reader_collected_as_garbage_while_an_event_is_told_disturbs_nobody():
    """The collection may come anywhere: some Pythons collect where a container is made."""
    before, event = gc.get_threshold(), Closing(ENGINE)
    for threshold in range(1, 60):
        hub = Hub()
        readers = [hub.reader() for _ in range(40)]
        gc.collect()
        gone = hub.reader()
        gone.itself = gone
        del gone
        gc.set_threshold(threshold)
        try:
            hub.push(event)
        finally:
            gc.set_threshold(*before)
        hub.close()
        assert asyncio.run(rest_of_all(readers)) == [[event]] * len(readers)
