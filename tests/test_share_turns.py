"""Shares with jobs at the same time: when each begins, and that failures, cancellations, hangs and closing block nobody else.

Bits are tested in layers/test_shares.py, the choice of turns in schedule/test_turns.py.
"""

import asyncio
import threading
import time

import numpy as np
import pytest

from asynctile import DeviceError, Engine, StalledError
from asynctile.ops import fill
from asynctile.program.needs import demand_of
from asynctile.share import runtime_of
from asynctile.streams.gate import CLOSED, OPEN
from tests.by_hand import enqueued, program_of, standing
from tests.matmul import Matmul, product_in_ram
from tests.settle import HANG_S, settle, until

WORK = Matmul()
ALL = 3 * 16 * WORK.nbytes
PART = {"device_memory": 2 * ALL, "host_memory": 2 * ALL}


def engine(**more):
    return Engine("emulated", device_memory=10 * ALL, host_memory=20 * ALL, **more)


class Asked:
    """A program of one operation, which runs until it is released."""

    def __init__(self, engine):
        (self.tile,) = standing("a")
        self.program = program_of(fill(self.tile, 1.0))
        self.demand = demand_of([self.program], [self.tile])
        self.go_on, self.runs, self.fails = threading.Event(), threading.Event(), False
        runtime_of(engine).device.kernels["fill"] = self.held

    def held(self, target, value):
        self.runs.set()
        self.go_on.wait()
        if self.fails:
            raise ValueError("a kernel that fails")
        target[...] = value

    async def on(self, part):
        async def job():
            async with runtime_of(part).exclusive():
                run = await runtime_of(part).start(self.program, self.demand, {})
                try:
                    await run.finish()
                except BaseException:
                    await run.abandon()
                    raise

        await runtime_of(part).reserve(self.demand)
        await runtime_of(part).call(job())

    async def begun(self, part):
        task = asyncio.create_task(self.on(part))
        await until(self.runs.is_set)
        return task


def stand_still(engine, monkeypatch):
    """Stop the clock, so that no turn ends by it."""
    now = time.monotonic()
    monkeypatch.setattr(runtime_of(engine).life.turns, "clock", lambda: now)


def patient(part, patience_s):
    """Set the watchdog's patience for one share: on a busy machine healthy work of the others also stands still for a while."""
    runtime_of(part).tiers.run_ahead.patience_s = patience_s


def counted(engine):
    """Return a list that gets an entry for every product that runs."""
    ran, gemm = [], runtime_of(engine).device.kernels["gemm"]
    runtime_of(engine).device.kernels["gemm"] = lambda *args: (ran.append(time.monotonic()), gemm(*args))
    return ran


def nobody_waits(*parts):
    return all(runtime_of(part).turn.level == OPEN for part in parts) and not runtime_of(parts[0]).life.turns.ledger.parties


async def test_nothing_of_another_share_begins_while_an_interactive_job_runs(monkeypatch):
    expected = await product_in_ram(WORK)
    async with engine() as whole, whole.share(**PART) as part, whole.share(**PART, interactive=True) as first:
        work, asked, ran = Matmul(), Asked(whole), counted(whole)
        await work.prepare(part)
        stand_still(whole, monkeypatch)
        asking = await asked.begun(first)
        training = asyncio.create_task(work.run(part))
        await until(lambda: runtime_of(part).turn in runtime_of(whole).life.turns.ledger.parties)
        await settle(whole)
        uploads = runtime_of(whole).device.streams()[-2]
        assert not ran and not runtime_of(part).tiers.gate.admits(True) and part.statistics().operations == 0
        assert not uploads.running and uploads.finished == 0
        asked.go_on.set()
        await asking
        await training
        assert len(ran) == len(work.program) and nobody_waits(whole, part, first)
        assert np.array_equal(await work.result(part), expected)


async def test_one_training_copies_ahead_while_the_other_computes(monkeypatch):
    async with engine() as whole, whole.share(**PART) as part, whole.share(**PART) as other:
        work, asked, ran = Matmul(), Asked(whole), counted(whole)
        await work.prepare(part)
        stand_still(whole, monkeypatch)
        asking = await asked.begun(other)
        training = asyncio.create_task(work.run(part))
        await until(lambda: runtime_of(part).turn in runtime_of(whole).life.turns.ledger.parties)
        await settle(whole)
        assert not ran and runtime_of(part).tiers.gate.admits(True)
        asked.go_on.set()
        await asyncio.gather(asking, training)
        assert nobody_waits(whole, part, other)


async def test_an_interactive_job_that_hangs_has_its_turns_and_no_more():
    async with engine(watchdog=None) as whole, whole.share(**PART) as part:
        work = Matmul()
        await work.prepare(part)
        asked, first = Asked(whole), whole.share(**PART, interactive=True)
        hanging = await first.__aenter__()
        patient(hanging, 0.5)
        asking = await asked.begun(hanging)
        await work.run(part)
        with pytest.raises(StalledError, match=r"fill\(a\) has run on compute"):
            await asking
        await work.run(part)
        with pytest.raises(StalledError, match=r"fill\(a\) has run on compute"):
            await first.__aexit__(None, None, None)
        asked.go_on.set()


async def test_a_share_that_waits_for_its_turn_is_not_taken_for_hung_while_another_moves(monkeypatch):
    """Its watchdog is shorter than its wait; meanwhile a player of another share makes progress."""
    async with engine(watchdog=None) as whole, whole.share(**PART) as part, whole.share(**PART, interactive=True) as first:
        work, other = Matmul(), Matmul()
        await work.prepare(part)
        await other.prepare(first)
        for _ in range(3):
            await other.run(first)
        stopped, runs = threading.Event(), []
        stand_still(whole, monkeypatch)

        async def playing():
            async with runtime_of(first).exclusive():
                while not stopped.is_set():
                    run = await runtime_of(first).start(other.program, other.demand, {})
                    await run.finish()
                    runs.append(run.played)

        one = asyncio.create_task(runtime_of(first).call(playing()))
        await until(lambda: runs)
        patient(part, 0.2)
        waiting = asyncio.create_task(work.run(part))
        await until(lambda: runtime_of(part).tiers.gate.is_awaited)
        await asyncio.sleep(0.5)
        assert not waiting.done() and all(runs)
        patient(part, None)
        stopped.set()
        await asyncio.gather(one, waiting)
        assert nobody_waits(whole, part, first)


@pytest.mark.parametrize("interactive", [False, True])
async def test_a_job_that_fails_or_is_cancelled_during_its_turn_leaves_the_turn_to_the_others(interactive, monkeypatch):
    expected = await product_in_ram(WORK)
    for end in ("fails", "cancelled"):
        async with engine() as whole, whole.share(**PART) as part, whole.share(**PART, interactive=interactive) as first:
            work, asked = Matmul(), Asked(whole)
            await work.prepare(part)
            stand_still(whole, monkeypatch)
            asking = await asked.begun(first)
            training = asyncio.create_task(work.run(part))
            await until(lambda part=part, whole=whole: runtime_of(part).turn in runtime_of(whole).life.turns.ledger.parties)
            asked.fails = end == "fails"
            if end == "cancelled":
                asking.cancel()
            asked.go_on.set()
            with pytest.raises(ValueError if asked.fails else asyncio.CancelledError):
                await asking
            await training
            assert nobody_waits(whole, part, first)
            assert np.array_equal(await work.result(part), expected)


async def test_a_job_cancelled_while_it_waits_for_its_turn_ends_when_the_others_let_it(monkeypatch):
    async with engine() as whole, whole.share(**PART) as part, whole.share(**PART, interactive=True) as first:
        work, asked = Matmul(), Asked(whole)
        await work.prepare(part)
        stand_still(whole, monkeypatch)
        asking = await asked.begun(first)
        training = asyncio.create_task(work.run(part))
        await until(lambda: runtime_of(part).tiers.gate.is_awaited)
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training
        parties = runtime_of(whole).life.turns.ledger.parties
        assert [*parties] == [runtime_of(first).turn], "nothing was enqueued: it waits for nothing"
        asked.go_on.set()
        await asking
        await work.run(part)


async def test_closing_the_engine_lets_held_back_work_run_out(monkeypatch):
    async with engine() as whole:
        lent = [whole.share(**PART), whole.share(**PART, interactive=True)]
        part, first = [await one.__aenter__() for one in lent]
        work, asked, gemm, held = Matmul(), Asked(whole), runtime_of(whole).device.kernels["gemm"], threading.Event()
        await work.prepare(part)
        runtime_of(whole).device.kernels["gemm"] = lambda *args: (held.wait(), gemm(*args))
        issued = enqueued(whole)
        training, uploads = asyncio.create_task(work.run(part)), runtime_of(whole).device.streams()[-2]
        await until(lambda: len(issued) == len(work.program))
        await until(lambda: uploads.depth == (0, 0))  # no operation waits for a copy, which would be held back
        stand_still(whole, monkeypatch)
        asking = asyncio.create_task(asked.on(first))
        await until(lambda: runtime_of(part).turn.level == CLOSED)
        held.set()
        await until(asked.runs.is_set)
        await settle(whole)
        assert runtime_of(part).turn.has_work(runtime_of(whole).device.streams())
        closing = asyncio.create_task(whole.aclose())
        async with asyncio.timeout(HANG_S):
            await asyncio.wait([training])  # although the other's kernel still runs
        assert training.done() and not asking.done()
        asked.go_on.set()
        await closing
        with pytest.raises(DeviceError):
            await asking
        for one in lent:
            await one.__aexit__(None, None, None)


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf"), True, "2"])
async def test_an_invalid_weight_is_refused(weight):
    async with Engine("cpu", host_memory=8 * ALL) as whole:
        with pytest.raises(ValueError, match=r"weight is .*: expected a finite number above 0, such as 2\.0$"):
            async with whole.share(host_memory=ALL, weight=weight):
                raise AssertionError("lent")
        async with whole.share(host_memory=ALL, weight=3, interactive=True) as part:
            assert (part.weight, part.interactive, whole.weight, whole.interactive) == (3, True, 1.0, False)
