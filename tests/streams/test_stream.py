"""Streams and events on worker threads."""

import asyncio
import threading

import pytest

from asynctile.streams.stream import Stream
from tests.settle import let_through, until


@pytest.fixture
def streams():
    lock = threading.Lock()
    made = [Stream("a", lock), Stream("b", lock)]
    for stream in made:
        stream.start()
    yield made
    for stream in made:
        stream.close()


async def test_work_runs_in_the_order_in_which_it_was_enqueued(streams):
    seen = []
    for index in range(100):
        event = streams[0].enqueue((), seen.append, (index,))
    await event.landed()
    assert seen == list(range(100))


async def test_a_stream_waits_for_an_event_of_another(streams):
    gate, seen = threading.Event(), []
    first = streams[0].enqueue((), gate.wait, ())
    second = streams[1].enqueue((first,), seen.append, ("second",))
    let_through(streams[1])
    assert not second.done
    assert seen == []
    gate.set()
    await second.landed()
    assert seen == ["second"]


async def test_an_error_travels_to_everything_that_waits_for_it_and_no_further(streams):
    seen = []

    def fail():
        raise ValueError("bad kernel")

    failed = streams[0].enqueue((), fail, ())
    poisoned = streams[1].enqueue((failed,), seen.append, ("poisoned",))
    healthy = streams[1].enqueue((), seen.append, ("healthy",))
    with pytest.raises(ValueError, match="bad kernel"):
        await poisoned.landed()
    await healthy.landed()
    assert seen == ["healthy"]


async def test_settling_does_not_raise(streams):
    failed = streams[0].enqueue((), int, ("x",))
    await failed.settled()
    assert isinstance(failed.error, ValueError)


async def test_an_event_that_lands_while_nobody_listens_any_more_is_harmless(streams):
    gate = threading.Event()
    event = streams[0].enqueue((), gate.wait, ())
    waiter = asyncio.create_task(event.landed())
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    gate.set()
    await event.landed()


async def test_only_waits_for_copies_count_as_stall(streams):
    gate = threading.Event()
    kernel = streams[0].enqueue((), gate.wait, ())
    after_kernel = streams[1].enqueue((kernel,), int, ())
    gate.set()
    await after_kernel.landed()
    assert streams[1].waiting_s == 0.0
    gate.clear()
    await until(lambda: streams[1]._idle)
    copy = streams[0].enqueue((), gate.wait, (), is_copy=True)
    after_copy = streams[1].enqueue((copy,), int, ())
    gate.set()
    await after_copy.landed()
    assert streams[1].waiting_s > 0.0


async def test_what_is_ready_does_not_wait_behind_what_is_not(streams):
    gate, seen = threading.Event(), []
    held = streams[0].enqueue((), gate.wait, ())
    late = streams[1].enqueue((held,), seen.append, ("late",))
    await streams[1].enqueue((), seen.append, ("early",)).landed()
    gate.set()
    await late.landed()
    assert seen == ["early", "late"]


async def test_a_stream_of_several_threads_runs_as_many_at_once():
    stream = Stream("pool", threading.Lock(), threads=3)
    stream.start()
    meeting = threading.Barrier(3)
    events = [stream.enqueue((), meeting.wait, (20,)) for _ in range(3)]
    for event in events:
        await event.landed()
    stream.close()


def test_waiting_for_an_event_that_is_done_returns_at_once(streams):
    event = streams[0].enqueue((), int, ())
    event.wait()
    event.wait()


def test_closing_runs_what_is_enqueued():
    stream, seen = Stream("c", threading.Lock()), []
    stream.start()
    for index in range(50):
        stream.enqueue((), seen.append, (index,))
    stream.close()
    assert seen == list(range(50))


async def test_time_in_which_nobody_asked_for_anything_is_no_stall(streams):
    gate = threading.Event()
    copy = streams[0].enqueue((), gate.wait, (), is_copy=True)
    after = streams[1].enqueue((copy,), int, ())
    gate.set()
    await after.landed()
    await until(lambda: streams[1]._idle)
    before = streams[1].waiting_s
    await streams[1].enqueue((), int, ()).landed()
    assert streams[1].waiting_s == before


async def test_work_that_only_comes_after_another_runs_although_that_failed(streams):
    gate, seen = threading.Event(), []

    def fails():
        gate.wait()
        seen.append("failed")
        raise ZeroDivisionError

    bad = streams[0].enqueue((), fails, ())
    follower = streams[1].enqueue((), seen.append, ("follower",), after=(bad,))
    dependent = streams[1].enqueue((bad,), seen.append, ("dependent",))
    gate.set()
    await follower.landed()
    with pytest.raises(ZeroDivisionError):
        await dependent.landed()
    assert seen == ["failed", "follower"]
