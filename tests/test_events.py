"""The events that an engine sends, who receives them, and what it logs.

Readers themselves are tested in tests/test_hub.py, events of models and trainings in tests/layers/test_telling.py.
"""

import asyncio
import logging
from concurrent.futures import Future

import numpy as np
import pytest

from asynctile import BudgetError, Engine, StalledError
from asynctile.events import REPAIR, RETRY, STALL, Closing, Fault, Opened, Opening, Pressure, Waiting
from asynctile.ops import copy, gemm
from asynctile.program.needs import demand_of
from asynctile.program.program import Program
from asynctile.share import runtime_of
from asynctile.storage.faults import Faults
from asynctile.storage.tile import Tile
from asynctile.streams import run_ahead
from tests.inside_engine import device_of
from tests.matmul import Matmul
from tests.settle import settle


async def rest(reader):
    """Return the events that a closed engine still has for this reader."""
    return [event async for event in reader]


async def holder_of(engine):
    """Start a job that holds the engine; return its task and the future that ends it."""
    go_on, held, here = Future(), asyncio.Event(), asyncio.get_running_loop()

    async def holds():
        async with runtime_of(engine).exclusive():
            here.call_soon_threadsafe(held.set)
            await asyncio.wrap_future(go_on)

    task = asyncio.create_task(runtime_of(engine).call(holds()))
    await held.wait()
    return task, go_on


async def test_an_engine_tells_of_its_opening_and_closing_and_then_ends_its_readers(caplog):
    caplog.set_level(logging.INFO, logger="asynctile")
    reported = []
    engine = Engine("emulated", device_memory="1MiB", host_memory="8MiB", report=lambda *progress: reported.append(progress))
    warm = device_of(engine).warm

    def compile_one(report, stop):
        report("gemm", 3, 4)
        return warm(None, stop)

    device_of(engine).warm = compile_one
    reader = engine.events()
    async with engine:
        pass
    opening, opened, closing = await rest(reader)
    assert (type(opening), type(opened), type(closing)) == (Opening, Opened, Closing)
    assert [(opening.kernel, opening.ready, opening.total)] == reported == [("gemm", 3, 4)]
    caps = opened.device, opened.device_memory_bytes, opened.host_memory_bytes, opened.spill_limit_bytes
    assert caps == ("emulated", 1 << 20, 8 << 20, None)
    assert {event.share for event in (opening, opened, closing)} == {"engine"}
    assert await rest(engine.events()) == []
    lines = [(record.name, record.levelname) for record in caplog.records]
    assert lines == [("asynctile.engine", "INFO"), ("asynctile.lifetime", "INFO")]


@pytest.mark.parametrize(("fault", "kind"), [("eio_read", RETRY), ("eio_write", RETRY), ("flip_read", REPAIR)])
async def test_a_transfer_that_succeeds_after_retries_is_told_and_logged(fault, kind, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="asynctile.storage")
    faults, work = Faults(seed=3), Matmul()
    async with Engine("cpu", host_memory=6 * work.nbytes, spill=tmp_path, wrap_spill=faults.wrap) as engine:
        await work.prepare(engine)
        reader = engine.events()
        faults.arm(fault, after=7)
        await work.run(engine)
    told = [event for event in await rest(reader) if isinstance(event, Fault)]
    assert [event.kind for event in told] == [kind]
    assert f"tile {told[0].text.split()[1]} was " in told[0].text and " on try 2, after " in told[0].text
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", told[0].text)]


async def test_a_nearly_full_cap_is_told_once_and_again_only_after_it_was_well_below(tmp_path):
    tiles = [Tile(f"t{index}", (256, 1024), persistent=True) for index in range(5)]  # a MiB each
    async with Engine("cpu", host_memory="5MiB", spill_limit="64MiB", spill=tmp_path) as engine:
        reader = engine.events()
        await runtime_of(engine).reserve(demand_of([], tiles))

        async def come_and_go(some):
            await runtime_of(engine).store((tile, np.zeros(tile.shape, np.float32)) for tile in some)
            await runtime_of(engine).release(some)

        await runtime_of(engine).store((tile, np.zeros(tile.shape, np.float32)) for tile in tiles[:4])
        for _ in range(2):
            await come_and_go(tiles[4:])
        await runtime_of(engine).release(tiles[:4])
        await runtime_of(engine).store((tile, np.zeros(tile.shape, np.float32)) for tile in tiles)
    told = [event for event in await rest(reader) if isinstance(event, Pressure)]
    assert [(event.tier, event.used_bytes, event.cap_bytes) for event in told] == [("host_memory", 5 << 20, 5 << 20)] * 2
    assert "host_memory of 5.00 MiB is nearly used up: work that does not fit into the rest will be refused" in told[0].text


async def test_a_cap_that_only_the_job_itself_fills_is_told_once():
    work = Matmul(n=1)
    a, b, c = (work.tiles[name][0, 0] for name in "abc")
    program = Program("product")
    between = program.tile("between", a.shape)
    program.add(gemm(a, b, between))
    program.add(copy(between, c))
    program.finish()
    demand = demand_of([program], work.standing())
    async with Engine("cpu", host_memory=4 * work.nbytes) as engine:
        await work.prepare(engine)
        reader = engine.events()

        async def job():
            async with runtime_of(engine).exclusive():
                await (await runtime_of(engine).start(program, demand, {})).finish()

        for _ in range(3):
            await runtime_of(engine).call(job())
        assert engine.statistics().host_used_bytes == 3 * work.nbytes
    (told,) = [event for event in await rest(reader) if isinstance(event, Pressure)]
    assert (told.tier, told.used_bytes, told.cap_bytes) == ("host_memory", 4 * work.nbytes, 4 * work.nbytes)


async def test_a_cap_below_the_working_set_is_told_as_one_with_evictions():
    work = Matmul()
    async with Engine("emulated", device_memory=6 * work.nbytes, host_memory="64MiB") as engine:
        reader = engine.events()
        await work.prepare(engine)
        for _ in range(3):
            await work.run(engine)
    (told,) = [event for event in await rest(reader) if isinstance(event, Pressure)]
    assert (told.tier, told.used_bytes) == ("device_memory", 6 * work.nbytes)
    assert "the working set is larger, so tiles are evicted and loaded again" in told.text


async def test_ram_that_cannot_be_lent_is_told_with_the_name_of_the_borrower():
    async def borrow(nbytes):
        async with runtime_of(engine).exclusive():
            return runtime_of(engine).tiers.caps.borrow(nbytes, "somebody")

    async with Engine("cpu", host_memory="32MiB") as engine:
        reader = engine.events()
        assert await runtime_of(engine).call(borrow(40 << 20)) is None
    (told,) = [event for event in await rest(reader) if isinstance(event, Pressure)]
    assert (told.tier, told.used_bytes, told.cap_bytes) == ("host_memory", 0, 32 << 20)
    assert "has no room for 40.00 MiB for somebody, which goes on without it" in told.text


async def test_a_long_wait_is_told_while_it_lasts_and_when_it_is_over(monkeypatch):
    monkeypatch.setattr(run_ahead, "LONG_S", 0.0)
    async with Engine("cpu") as engine:
        reader = engine.events()
        holder, go_on = await holder_of(engine)
        waiter = asyncio.create_task(runtime_of(engine).synchronize())
        long = await anext(reader)
        assert engine.statistics().waiting_jobs == 1
        go_on.set_result(None)
        await asyncio.gather(holder, waiter)
        over = await anext(reader)
        after = engine.statistics()
    assert (type(long), type(over)) == (Waiting, Waiting)
    assert "Runtime.synchronize waits for the engine, which is held by" in long.text
    assert (long.is_over, over.is_over, over.text) == (False, True, long.text)
    assert 0 <= long.seconds <= over.seconds == after.waited_s
    assert after.waiting_jobs == 0


async def test_a_short_wait_is_counted_and_never_told():
    timers = []

    def make_loop():
        loop = asyncio.new_event_loop()
        call_later = loop.call_later
        loop.call_later = lambda *args: timers.append(call_later(*args)) or timers[-1]
        return loop

    async with Engine("cpu", make_loop=make_loop) as engine:
        reader = engine.events()
        holder, go_on = await holder_of(engine)
        waiter = asyncio.create_task(runtime_of(engine).synchronize())
        await settle(engine)
        go_on.set_result(None)
        await asyncio.gather(holder, waiter)
        assert engine.statistics().waited_s > 0
        assert timers and all(timer.cancelled() for timer in timers)
    assert [type(event) for event in await rest(reader)] == [Closing]


async def test_an_event_names_the_holder_of_lent_ram_that_others_wait_for(monkeypatch):
    monkeypatch.setattr(run_ahead, "LONG_S", 0.0)

    async def borrow():
        async with runtime_of(engine).exclusive():
            return runtime_of(engine).tiers.caps.borrow(30 << 20, "the save of a model")

    async def give_back(loan):
        loan.give_back()

    async with Engine("cpu", host_memory="32MiB") as engine:
        loan = await runtime_of(engine).call(borrow())
        reader = engine.events()
        tiles = [Tile(f"t{index}", (512, 1024), persistent=True) for index in range(4)]
        reserving = asyncio.create_task(runtime_of(engine).reserve(demand_of([], tiles)))
        told = await anext(reader)
        await runtime_of(engine).call(give_back(loan))
        await reserving
    assert "Runtime.reserve waits for RAM, but 30.00 MiB is lent to the save of a model" in told.text


async def test_a_stall_is_told_when_it_is_raised():
    async with Engine("cpu", watchdog=0.2) as engine:
        reader = engine.events()
        holder, go_on = await holder_of(engine)
        with pytest.raises(StalledError) as caught:
            await runtime_of(engine).synchronize()
        go_on.set_result(None)
        await holder
    (told,) = [event for event in await rest(reader) if isinstance(event, Fault)]
    assert (told.kind, told.text) == (STALL, str(caught.value))


async def test_events_of_a_share_bear_its_name_and_reach_the_readers_of_the_engine():
    async with Engine("cpu", host_memory="32MiB") as engine:
        reader = engine.events()
        async with engine.share(host_memory="8MiB", name="chat") as chat:
            runtime_of(chat).tell(Fault, kind=RETRY, text="in a share")
            with pytest.raises(BudgetError):
                await runtime_of(chat).reserve(demand_of([], [Tile("t", (2048, 2048), persistent=True)]))
    (told,) = [event for event in await rest(reader) if isinstance(event, Fault)]
    assert (told.share, told.text) == ("chat", "in a share")
