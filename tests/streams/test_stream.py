"""Streams and events on worker threads."""

import asyncio
import threading

import pytest

from asynctile.errors import DeviceError
from asynctile.streams.gate import CLOSED, COPIES, GATE, OPEN, Gate
from asynctile.streams.stream import Stream
from tests.settle import HANG_S, let_through, turns, until


@pytest.fixture
def streams():
    lock = threading.Lock()
    made = [Stream("a", lock), Stream("b", lock)]
    for stream in made:
        stream.start()
    yield made
    for stream in made:
        stream.close()


async def test_work_runs_in_the_order_of_enqueuing(streams):
    seen = []
    for index in range(100):
        event = streams[0].enqueue((), seen.append, (index,))
    await event.landed()
    assert seen == list(range(100))


async def test_ready_work_runs_in_the_order_that_its_enqueuer_names(streams):
    gate, seen = threading.Event(), []
    streams[0].enqueue((), gate.wait, ())
    for order in (7, 5, 9, None, 4):  # None: the number enqueued so far, which is 5
        event = streams[0].enqueue((), seen.append, (order,), order=order)
    gate.set()
    await event.landed()
    await until(lambda: len(seen) == 5)
    assert seen[0] == 4 and set(seen[1:3]) == {5, None} and seen[3:] == [7, 9]


async def test_an_event_that_lands_without_a_listener_is_harmless(streams):
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
    await until(lambda: streams[1].idle)
    copy = streams[0].enqueue((), gate.wait, (), is_copy=True)
    after_copy = streams[1].enqueue((copy,), int, ())
    gate.set()
    await after_copy.landed()
    assert streams[1].waiting_s > 0.0


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


def test_closing_runs_enqueued_work():
    stream, seen = Stream("c", threading.Lock()), []
    stream.start()
    for index in range(50):
        stream.enqueue((), seen.append, (index,))
    stream.close()
    assert seen == list(range(50))


def test_a_thread_that_closing_does_not_wait_for_is_named_in_the_log(caplog):
    stream, gate, reached = Stream("hangs", threading.Lock()), threading.Event(), threading.Event()

    def hang():
        reached.set()
        gate.wait(HANG_S)

    stream.start()
    event = stream.enqueue((), hang, ())
    assert reached.wait(HANG_S)
    stream.close(0.01)
    gate.set()
    event.wait()
    said = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    text = "thread asynctile-hangs hangs in its work and is left behind; it ends when that work does"
    assert said == [("asynctile.streams.stream", "WARNING", text)]


async def test_idle_time_is_no_stall(streams):
    gate = threading.Event()
    copy = streams[0].enqueue((), gate.wait, (), is_copy=True)
    after = streams[1].enqueue((copy,), int, ())
    gate.set()
    await after.landed()
    await until(lambda: streams[1].idle)
    before = streams[1].waiting_s
    await streams[1].enqueue((), int, ()).landed()
    assert streams[1].waiting_s == before


@pytest.fixture
def gate():
    """The gate of everything that a test enqueues from here on."""
    made, before = Gate(), GATE.get()
    GATE.set(made)
    yield made
    GATE.set(before)


async def test_work_behind_a_shut_gate_waits_and_other_work_goes_on(streams, gate):
    seen = []
    gate.set(CLOSED)
    events = [streams[0].enqueue((), seen.append, (index,)) for index in range(5)]
    GATE.set(None)
    await streams[0].enqueue((), seen.append, ("another",)).landed()
    await streams[0].enqueue((), seen.append, ("more",), after=()).landed()
    assert seen == ["another", "more"] and streams[0].has_work(gate, False)
    streams[0].gates_changed()
    let_through(streams[0])
    assert len(seen) == 2, "it is shut as before"
    gate.set(OPEN)
    streams[0].gates_changed()
    await events[-1].landed()
    assert seen == ["another", "more", *range(5)] and not streams[0].has_work(gate, True)


async def test_copies_pass_a_gate_that_is_open_for_them(streams, gate):
    seen = []
    gate.set(COPIES)
    operation = streams[0].enqueue((), seen.append, ("operation",))
    copied = streams[0].enqueue((), seen.append, ("copy",), is_copy=True)
    await copied.landed()
    assert seen == ["copy"] and streams[0].has_work(gate, False)
    gate.set(OPEN)
    streams[0].gates_changed()
    await operation.landed()


async def test_work_that_becomes_ready_behind_a_shut_gate_waits_too(streams, gate):
    held, seen = threading.Event(), []
    first = streams[0].enqueue((), held.wait, ())
    second = streams[1].enqueue((first,), seen.append, ("second",))
    await until(lambda: streams[0].running)
    gate.set(CLOSED)
    held.set()
    await first.landed()
    GATE.set(None)
    let_through(streams[1])
    assert not second.done
    gate.set(OPEN)
    for stream in streams:
        stream.gates_changed()
    await second.landed()


async def test_closing_runs_work_behind_a_shut_gate(streams, gate):
    seen = []
    gate.set(CLOSED)
    first = streams[0].enqueue((), seen.append, (1,))
    second = streams[0].enqueue((first,), seen.append, (2,))
    await until(lambda: len(streams[0].waiting) == 2)
    streams[0].close()
    assert first.done and second.done and seen == [1, 2]


@pytest.mark.parametrize("threads", [1, 3])
async def test_no_work_is_lost_however_often_a_gate_is_shut_and_opened(threads, gate):
    stream, seen = Stream("gated", threading.Lock(), threads), []
    stream.start()
    events = [stream.enqueue((), seen.append, (index,)) for index in range(3000)]
    for turn in range(300):
        gate.set((CLOSED, OPEN, COPIES, OPEN)[turn % 4])
        stream.gates_changed()
        await asyncio.sleep(0)
    async with asyncio.timeout(HANG_S):
        for event in events:
            await event.landed()
    assert sorted(seen) == list(range(3000))
    stream.close()


async def test_waiting_for_a_turn_is_not_waiting_for_a_copy(streams, gate):
    held = threading.Event()
    copy = streams[1].enqueue((), held.wait, (), is_copy=True)
    await until(lambda: streams[1].running)
    gate.set(CLOSED)
    streams[0].enqueue((), int, ())
    await until(lambda: streams[0].waiting)
    waits = streams[0].enqueue((copy,), int, ())
    await until(lambda: streams[0].idle)
    before = streams[0].waiting_s
    await asyncio.sleep(0.01)
    streams[0].trace = None  # this also counts what has been waited until now
    assert streams[0].waiting_s == before
    gate.set(OPEN)
    streams[0].gates_changed()
    let_through(streams[0])
    await until(lambda: streams[0].idle)
    await asyncio.sleep(0.01)
    held.set()
    await waits.landed()
    assert streams[0].waiting_s - before >= 0.01


async def test_an_opening_gate_lets_all_waiters_go_on_except_cancelled_ones():
    gate = Gate()
    gate.set(COPIES)
    waiting = [asyncio.ensure_future(gate.opened()) for _ in range(3)]
    await turns()
    assert gate.is_awaited
    waiting[1].cancel()
    await turns()
    gate.set(CLOSED)
    await turns()
    assert not waiting[0].done()
    gate.set(OPEN)
    gate.set(CLOSED)  # every waiter that is told looks again
    await turns()
    assert not waiting[0].done() and gate.is_awaited
    gate.set(OPEN)
    await asyncio.wait(waiting)
    assert [task.cancelled() for task in waiting] == [False, True, False] and not gate.is_awaited


async def test_a_promised_copy_is_done_when_it_is_kept_and_its_error_travels(streams):
    good, bad = (streams[1].promise("a tile from afar") for _ in range(2))
    reader, follower = streams[0].enqueue((good,), int, ()), streams[0].enqueue((), int, (), after=(bad,))
    failed = streams[0].enqueue((bad,), int, ())
    before = streams[1].finished
    assert streams[1].depth == (2, 0)
    streams[1].keep(good, None)
    await reader.landed()
    assert not follower.done and not failed.done
    streams[1].keep(bad, OSError("lost"))
    await follower.landed()
    with pytest.raises(OSError, match="lost"):
        await failed.landed()
    assert streams[1].finished == before + 2 and streams[1].depth == (0, 0)


async def test_a_stream_closes_when_its_promises_are_kept(streams):
    event = streams[1].promise("a tile from afar")
    closing = asyncio.create_task(asyncio.to_thread(streams[1].close))
    await turns()
    assert not closing.done()
    streams[1].keep(event, None)
    await closing
    with pytest.raises(DeviceError, match="stream b is closed"):
        streams[1].promise("another")
