"""Scenario `cancel`: steps, programs and every other public coroutine disturbed at a random moment, over and over.

A step that was cancelled has either changed nothing or ended whole, and the next one is bitwise what it should be. A program
that was cancelled is run again from the beginning. The moment is a number of turns of the caller's loop or a time, so that it
falls into every wait of caller and engine. Covers steps and programs; all calls, opening and closing are calls.py.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from typing import Any

from asynctile.cli.stress.calls import play_calls, play_lives
from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.models import batch, draw_recipe, draw_training_place, expect_state, new_trainer, state_of
from asynctile.cli.stress.place import draw_place
from asynctile.cli.stress.round import Round
from asynctile.cli.stress.work import Outcome
from asynctile.cli.stress.writer import write_program
from asynctile.layers import Trainer

__all__ = ["play"]

_STEPS, _AT_MOST = 7, 14
_TURNS = 40


async def play(round: Round) -> bool:
    """Every round counts."""
    await round.chance.choices(list(_PLAYS), list(_PLAYS.values()))[0](round)
    return True


async def _program(round: Round) -> None:
    work = write_program(round.chance)
    expected = work.interpret(work.values)
    async with round.engine(draw_place(round.chance, work.demand)) as engine:
        await work.store(engine)
        began = time.monotonic()
        await work.run(engine)
        usual_s = time.monotonic() - began
        for _ in range(3):
            await work.store(engine)
            await _cancelled(round, work.run(engine), usual_s)
        await work.store(engine)
        outcome: Outcome = await work.run(engine)
        (await work.read(engine, outcome)).expect(expected)
        await work.release(engine)


async def _train(round: Round) -> None:
    recipe = draw_recipe(round.chance)
    states, _ = await round.course.follow(recipe, _STEPS)
    place = draw_training_place(round.chance, recipe)
    async with round.engine(place) as engine:
        trainer = await new_trainer(engine, recipe, place.update, round.tally)
        await trainer.step(*batch(1))
        began = time.monotonic()
        await trainer.step(*batch(2))
        usual_s = time.monotonic() - began
        for _ in range(_AT_MOST):
            if trainer.step_count == _STEPS:
                break
            await _step(round, trainer, usual_s)
            expect_state(await state_of(trainer), states[trainer.step_count], f"after step {trainer.step_count}")
        while trainer.step_count < _STEPS:
            await trainer.step(*batch(trainer.step_count + 1))
        expect_state(await state_of(trainer), states[_STEPS], f"after step {_STEPS}")
        await trainer.model.release()


async def _step(round: Round, trainer: Trainer, usual_s: float) -> None:
    """One step that may be cancelled; Finding if it then counted wrongly."""
    before = trainer.step_count
    cancelled = await _cancelled(round, trainer.step(*batch(before + 1)), usual_s)
    done = trainer.step_count - before
    if done not in (0, 1) or not (cancelled or done) or trainer.model.torn is not None:
        what = "cancelled" if cancelled else "not cancelled"
        raise Finding("failed", f"step {before + 1} was {what}; {done} steps were counted, the model is "
                                f"{trainer.model.torn or 'whole'}")


async def _cancelled(round: Round, work: Coroutine[Any, Any, Any], usual_s: float) -> bool:
    """Cancel `work` at a random moment; whether that came before its end. Its other errors are raised."""
    task = asyncio.create_task(work)
    await _moment(round.chance, usual_s)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        round.tally.cancellations += 1
        return True
    return False


async def _moment(chance: random.Random, usual_s: float) -> None:
    if chance.random() < 0.5:
        for _ in range(chance.randint(0, _TURNS)):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(chance.uniform(0, usual_s))


_PLAYS = {_train: 2, _program: 2, play_calls: 4, play_lives: 2}
