"""Scenario `crawl`: a disk that slows down to a few transfers per second and recovers, over and over.

Steps keep their bits, and however long they take the watchdog stays silent, because something moves. A cancelled step, and an
engine that is closed during one, end in bounded time.
"""

from __future__ import annotations

import asyncio
from typing import Any

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.leaks import Held
from asynctile.cli.stress.models import batch, new_trainer
from asynctile.cli.stress.place import StressEngine
from asynctile.cli.stress.round import Round
from asynctile.cli.stress.training import StressTraining
from asynctile.errors import AsynctileError
from asynctile.storage.faults import Faults

__all__ = ["play"]

STEPS, _CANCELLED = 4, 0.3
#: Seconds: added to a transfer; of a crawl; between two crawls.
DELAYS_S, _CRAWLS_S, _WELL_S = (0.002, 0.01, 0.05, 0.2, 0.4), (0.1, 0.6), (0.01, 0.2)
#: Longest time, in seconds, before a step is cancelled or its engine closed.
_MOMENT_S = 0.5
#: Patience of the watchdog: longer than a transfer takes, even on a busy disk; shorter than a training may take.
WATCHDOG_S = 5.0
#: Time limit of a cancellation or of closing: far longer than a step on this disk takes.
_BOUND_S = 30.0


async def play(round: Round) -> bool:
    """Play a round. Every round counts."""
    training, faults = StressTraining(round, STEPS, spill=True), Faults(round.chance.getrandbits(32))
    await training.begin()
    coming = asyncio.create_task(_come_and_go(round, faults))
    try:
        await _train(training, faults)
        await _close(training, faults)
    finally:
        coming.cancel()
        await asyncio.wait([coming])
        round.tally.injected.update(faults.injected)
    round.tally.faulted += 1
    round.tally.survived += 1
    return True


async def _come_and_go(round: Round, faults: Faults) -> None:
    """Slow the disk down and let it recover until this is cancelled."""
    chance = round.chance
    while True:
        await asyncio.sleep(chance.uniform(*_WELL_S))
        faults.delay_s = chance.choice(DELAYS_S)
        faults.arm("slow", lasting=True)
        await asyncio.sleep(chance.uniform(*_CRAWLS_S))
        faults.disarm()


async def _train(training: StressTraining, faults: Faults) -> None:
    """Do all steps and cancel some of them."""
    round = training.round
    async with training.on_engine(wrap_spill=faults.wrap, watchdog=WATCHDOG_S) as (_, trainer):
        while trainer.step_count < STEPS:
            step = asyncio.create_task(training.step(trainer))
            if round.chance.random() < _CANCELLED:
                await asyncio.wait([step], timeout=round.chance.uniform(0, _MOMENT_S))
                step.cancel()
                await _ended("a step that was cancelled", step)
                round.tally.cancellations += step.cancelled()
            if not step.cancelled():
                await step
        await training.expect(trainer)


async def _close(training: StressTraining, faults: Faults) -> None:
    """Close an engine during a step; nothing of it may be left."""
    round, place = training.round, training.place
    before = Held.now(round.spill)
    engine = StressEngine(place, round.spill, watchdog=WATCHDOG_S, wrap_spill=faults.wrap)
    async with engine:
        trainer = await new_trainer(engine, training.recipe, place.update, round.tally)
        step = asyncio.create_task(trainer.step(*batch(1)))
        await asyncio.wait([step], timeout=round.chance.uniform(0, _MOMENT_S))
        closing = asyncio.create_task(engine.aclose())
        await _ended("an engine that was closed, or the step that ran on it,", closing, step)
    closing.result()
    if not step.cancelled() and (error := step.exception()) is not None and not isinstance(error, AsynctileError):
        raise Finding("failed", f"a step whose engine was closed ended in {error!r}") from error
    await asyncio.sleep(0)  # finished tasks leave the loop's list
    before.expect_no_more(round.spill)


async def _ended(what: str, *tasks: asyncio.Task[Any]) -> None:
    """Wait for all tasks; Finding if they take too long."""
    _, pending = await asyncio.wait(tasks, timeout=_BOUND_S)
    if pending:
        raise Finding("hung", f"{what} had not ended after {_BOUND_S:g} s on a disk of a few transfers per second")
