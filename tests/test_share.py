"""A share of an engine at its limits: refused, cancelled, ended while it works, hanging, thrown away.

Bits are tested in layers/test_shares.py.
"""

import asyncio
import gc
import sys
import threading

import numpy as np
import pytest

from asynctile import BudgetError, DeviceError, Engine, StalledError
from asynctile.layers import GPT2Config
from asynctile.layers.model_state import ModelState
from asynctile.ops import copy, fill
from asynctile.share import runtime_of
from asynctile.streams import run_ahead
from tests.inside_engine import watch
from tests.matmul import Matmul
from tests.settle import HANG_S, turns, until

WORK = Matmul()
ALL = 3 * 16 * WORK.nbytes  # all tiles of the work


def caps(engine):
    found = engine.statistics()
    return found.device_memory_bytes, found.host_memory_bytes


async def prepared(engine):
    work = Matmul()
    await work.prepare(engine)
    await work.run(engine)
    return work


async def test_memory_is_not_lent_if_the_spill_folder_cannot_take_its_tiles_and_nothing_moves(tmp_path):
    host = 200 * 4096
    async with Engine("emulated", device_memory=2 * ALL, host_memory=host, spill=tmp_path, spill_limit="64KiB") as engine:
        work, before = await prepared(engine), (caps(engine), engine.statistics().spill_written_bytes)
        for _ in range(2):
            with pytest.raises(BudgetError, match=r"spill_limit of 64\.00 KiB is below"):
                async with engine.share(device_memory=ALL, host_memory=host - 10 * 4096):
                    raise AssertionError("lent")
            assert (caps(engine), engine.statistics().spill_written_bytes) == before
        await work.run(engine)
        assert np.allclose(await work.result(engine), work.a @ work.b, atol=1e-3)


async def test_lending_that_is_cancelled_during_evictions_gives_the_caps_back(tmp_path):
    gate, reached = threading.Event(), threading.Event()

    def wrap(file):
        write = file.pwritev

        def held(views, offset):
            reached.set()
            gate.wait()
            return write(views, offset)

        file.pwritev = held
        return file

    async with Engine("emulated", device_memory=2 * ALL, host_memory=200 * 4096, spill=tmp_path, wrap_spill=wrap) as engine:
        work, before = await prepared(engine), caps(engine)
        lending = asyncio.create_task(engine.share(device_memory=ALL, host_memory=180 * 4096).__aenter__())
        await asyncio.to_thread(reached.wait)
        lending.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await lending
        assert caps(engine) == before
        await work.run(engine)
        assert np.allclose(await work.result(engine), work.a @ work.b, atol=1e-3)


async def test_an_engine_lends_the_memory_of_tiles_that_are_gone():
    async with Engine("emulated", device_memory=ALL // 2, host_memory=2 * ALL) as engine:
        work = await prepared(engine)
        await runtime_of(engine).release(work.standing())
        async with engine.share(device_memory=ALL // 2 - 64, host_memory=2 * ALL - 64) as part:
            assert caps(part) == (ALL // 2 - 64, 2 * ALL - 64)
            assert caps(engine) == (64, 64)


async def test_the_end_of_a_share_waits_for_running_work_and_refuses_new_work():
    async with Engine("emulated", device_memory=2 * ALL, host_memory=4 * ALL) as engine:
        gate, began = threading.Event(), threading.Event()

        def held(target, value):
            began.set()
            gate.wait()

        async with engine.share(device_memory=ALL, host_memory=2 * ALL) as part:
            work = await prepared(part)
            runtime_of(engine).device.kernels["fill"] = held
            await runtime_of(part).launch(fill(work.tiles["a"][0, 0], 1.0))
            waiting = asyncio.create_task(runtime_of(part).synchronize())
            await asyncio.to_thread(began.wait)
            threading.Timer(0.2, gate.set).start()  # long after the block has ended
        assert waiting.done() and waiting.exception() is None
        ended = runtime_of(part)
        for late in (ended.synchronize(), ended.read(work.tiles["a"][0, 0]), ended.reserve(work.demand)):
            with pytest.raises(DeviceError, match="the share of the engine has ended"):
                await late
        assert caps(engine) == (2 * ALL, 4 * ALL)


async def test_a_share_that_hangs_at_its_end_keeps_its_memory_and_the_engine_closes():
    gate = threading.Event()
    async with asyncio.timeout(HANG_S):
        async with Engine("emulated", device_memory=2 * ALL, host_memory=4 * ALL, watchdog=None) as engine:
            before = caps(engine)

            async def block():
                async with engine.share(device_memory=ALL, host_memory=2 * ALL) as part:
                    work = await prepared(part)
                    runtime_of(engine).device.kernels["fill"] = lambda target, value: gate.wait()
                    watch(engine, 0.3)
                    await runtime_of(part).launch(fill(work.tiles["a"][0, 0], 1.0))
                    with pytest.raises(StalledError):
                        await runtime_of(part).synchronize()

            with pytest.raises(StalledError, match="has run on compute"):
                await block()
            assert caps(engine) == tuple(whole - lent for whole, lent in zip(before, (ALL, 2 * ALL), strict=True))
            assert len(runtime_of(engine).life.tiers) == 2
    gate.set()


async def test_nothing_begins_on_a_share_whose_end_waits_for_a_save(monkeypatch):
    monkeypatch.setattr(run_ahead, "LONG_S", 0.0)  # every wait is told
    async with Engine("emulated", device_memory=2 * ALL, host_memory=8 * ALL) as engine:
        lending = engine.share(device_memory=ALL, host_memory=4 * ALL)
        part = await lending.__aenter__()
        work, begun = await prepared(part), []

        async def borrowed():
            async with runtime_of(part).exclusive():
                return runtime_of(part).tiers.caps.borrow(4096, "a save")

        async def late():
            begun.append(True)

        async def begin_late():
            await runtime_of(part).begin(late())

        loan = await runtime_of(part).call(borrowed())
        events = engine.events()
        ending = asyncio.create_task(lending.__aexit__(None, None, None))
        assert "is lent to a save" in (await anext(events)).text
        with pytest.raises(DeviceError, match="the share of the engine has ended"):
            await runtime_of(engine).call(begin_late())
        assert not begun and not ending.done() and engine.statistics().host_memory_bytes == 4 * ALL
        assert runtime_of(part).tiers.top.of(work.tiles["c"][0, 0]).slot
        await runtime_of(engine).call(asyncio.to_thread(lambda: runtime_of(engine).life.loop.post(loan.give_back)))
        await ending
        assert engine.statistics().host_memory_bytes == 8 * ALL


async def test_a_call_of_a_share_cancelled_before_it_begins_leaves_no_unawaited_coroutine():
    async with Engine("cpu", host_memory=8 * ALL) as engine, engine.share(host_memory=ALL) as part:
        for _ in range(20):
            call = asyncio.create_task(runtime_of(part).synchronize())
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
        gc.collect()


@pytest.mark.parametrize("device", ["cpu", "emulated"])
async def test_a_share_that_is_cancelled_as_its_block_ends_is_taken_back(device, tmp_path):
    sizes = {"host_memory": 2 * ALL, "spill_limit": 40 * 4096} | ({"device_memory": ALL} if device == "emulated" else {})
    options = {"host_memory": 6 * ALL} | ({"device_memory": 3 * ALL} if device == "emulated" else {})
    async with Engine(device, spill=tmp_path, **options) as engine:
        before = caps(engine)
        for turns in range(12):

            async def block(turns=turns):
                me, loop = asyncio.current_task(), asyncio.get_running_loop()
                async with engine.share(**sizes):
                    for _ in range(turns // 2):
                        await asyncio.sleep(0)
                    loop.call_soon(me.cancel)
                    if turns % 2:
                        await asyncio.sleep(0)

            with pytest.raises(asyncio.CancelledError):
                await block()
            asyncio.current_task().uncancel()
            assert caps(engine) == before
        assert len(runtime_of(engine).life.tiers) == 1
        assert engine.statistics().spill_used_bytes == 0


async def test_an_engine_that_is_not_open_gives_no_share():
    with pytest.raises(DeviceError, match="the engine is not open: use it inside"):
        await Engine("cpu", host_memory="8MiB").share(host_memory="1MiB").__aenter__()


async def test_closing_the_engine_inside_the_block_of_a_share_ends_waiting_work():
    engine = await Engine("emulated", device_memory=2 * ALL, host_memory=4 * ALL).open()
    async with engine.share(device_memory=ALL, host_memory=2 * ALL) as part:
        tile = Matmul().tiles["a"][0, 0]
        waiting = asyncio.create_task(runtime_of(part).launch(copy(tile, Matmul().tiles["b"][0, 0])))
        await until(lambda: runtime_of(part).assembly.inputs.awaited)
        await engine.aclose()
        with pytest.raises(DeviceError):
            await waiting


def test_a_generator_inside_a_share_is_closed_once_when_its_loop_ends():
    """asyncio.run closes every generator it knows, in any order. It would close a share's own generator beside its user's."""
    told, ended = [], []

    async def lent(engine):
        async with engine.share(host_memory="1MiB") as part:
            try:
                yield part
            finally:
                ended.append(part)

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        engine = await Engine("cpu", host_memory="32MiB").open()
        users = [lent(engine) for _ in range(16)]
        return engine, users, [await anext(user) for user in users]

    engine, _users, parts = asyncio.run(main())
    asyncio.run(engine.aclose())
    assert (told, set(ended), engine.shares) == ([], set(parts), (engine,))


def test_a_coroutine_thrown_away_with_its_loop_inside_a_share_leaves_nothing_open():
    loop, entered = asyncio.new_event_loop(), []

    async def main():
        engine = Engine("emulated", device_memory=ALL, host_memory=ALL)
        async with engine, engine.share(device_memory=ALL // 2, host_memory=ALL // 2):
            entered.append(engine)
            loop.stop()
            await asyncio.sleep(3600)

    loop.set_exception_handler(lambda *_: None)  # the task that is destroyed while it waits
    task = loop.create_task(main())
    loop.run_forever()
    loop.close()
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("asynctile")]
    del task
    gc.collect()
    assert entered and ours
    for thread in ours:
        thread.join(HANG_S)
        assert not thread.is_alive(), thread.name


async def test_a_share_is_taken_back_even_if_its_users_block_fails_when_thrown_away():
    """A block inside that cannot end without its loop raises something other than GeneratorExit."""

    async def cannot_end():
        try:
            await asyncio.Event().wait()
        finally:
            asyncio.get_running_loop()

    async def use():
        async with engine.share(host_memory="1MiB"):
            began.set()
            await cannot_end()

    def elsewhere():
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)
        task = loop.create_task(use())
        while not began.is_set():
            loop.call_later(0.001, loop.stop)
            loop.run_forever()
        loop.close()
        del task
        gc.collect()

    began, ignored = threading.Event(), []
    before, sys.unraisablehook = sys.unraisablehook, ignored.append
    try:
        async with Engine("cpu", host_memory="16MiB") as engine:
            await asyncio.to_thread(elsewhere)
            async with engine.share(host_memory="15MiB") as part:  # the whole memory is back
                assert engine.shares == (engine, part)
    finally:
        sys.unraisablehook = before
    assert len(ignored) == 1


async def test_a_share_that_opens_while_a_model_is_made_leaves_the_model_its_slots(tmp_path):
    config = GPT2Config(n_layer=4, n_head=2, n_embd=64, block_size=32, vocab_size=256)
    async with Engine("cpu", host_memory="640KiB", spill=tmp_path) as engine:  # less than the weights
        runtime = runtime_of(engine)

        async def lend():
            async with runtime.exclusive():
                await runtime.tiers.caps.cede(0, 100 << 10)
                await runtime.tiers.caps.regain(0, 100 << 10)

        async def make():
            model = ModelState(runtime, config)
            async with runtime.exclusive():
                waiting = [asyncio.create_task(model.set_weights(zeros)), asyncio.create_task(lend())]
                await turns()
            await asyncio.gather(*waiting)
            return model

        def zeros(parameter, key):
            return np.zeros(parameter.weights[key].shape, np.float32)

        model = await runtime.call(make())
        assert not any(values.any() for values in await runtime.read_all(model.weights()))
