"""Scenario `cancel`: steps, programs and every other public coroutine disturbed at random moments, over and over.

To disturb a call is to cancel it, let it time out, or end the loop that it runs on (disturb.py). A cancelled step has either
changed nothing or ended as a whole, and the next one is bitwise right. A cancelled program is run again from the beginning.
The moment is a number of turns of the caller's loop or a time, so that it falls into every wait of caller and engine. Covers
steps and programs; lives.py covers all calls, opening and closing.
"""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from functools import partial

from asynctile.cli.stress.disturb import Call, Landed, Reached, disturbed, draw_disturbance, thrown_away
from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.lives import play_calls, play_lives
from asynctile.cli.stress.models import batch
from asynctile.cli.stress.place import MOST_DEVICES, EngineSetup, draw_place
from asynctile.cli.stress.round import Round
from asynctile.cli.stress.training import StressTraining
from asynctile.cli.stress.work import Outcome
from asynctile.cli.stress.writer import write_program
from asynctile.layers import Trainer

__all__ = ["play"]

_STEPS, _AT_MOST = 7, 14
_TURNS = 40


async def play(round: Round) -> bool:
    """Play a round. Every round counts."""
    with thrown_away() as ignored:
        await round.chance.choices(list(PLAYS), list(PLAYS.values()))[0](round)
        gc.collect()
    if ignored:
        raise Finding("failed", f"coroutines that were discarded with their loop failed: {'; '.join(ignored)}")
    return True


async def play_program(round: Round) -> None:
    """Disturb the runs of a program."""
    work = write_program(round.chance)
    expected = work.interpret(work.values)
    place = draw_place(round.chance, work.demand, devices=MOST_DEVICES)
    work = work.over(place.devices, round.chance)
    async with round.engine(place) as engine:
        await work.store(engine)
        began = time.monotonic()
        await work.run(engine)
        usual_s = time.monotonic() - began
        for _ in range(3):
            await work.store(engine)
            await _disturb(round, place, "Runtime.start", partial(work.run, engine), usual_s)
        await work.store(engine)
        outcome: Outcome = await work.run(engine)
        (await work.read(engine, outcome)).expect(expected)
        await work.release(engine)


async def play_training(round: Round) -> None:
    """Disturb the steps of a training."""
    training = StressTraining(round, _STEPS)
    await training.begin()
    async with training.on_engine() as (_, trainer):
        await training.step(trainer)
        began = time.monotonic()
        await training.step(trainer)
        usual_s = time.monotonic() - began
        for _ in range(_AT_MOST):
            if trainer.step_count == _STEPS:
                break
            await _step(round, training.place, trainer, usual_s)
            await training.expect(trainer)
        await training.go_on(trainer)


async def _step(round: Round, place: EngineSetup, trainer: Trainer, usual_s: float) -> None:
    """Do one step that may be cancelled; Finding if it then counted wrongly."""
    before = trainer.step_count
    landed = await _disturb(round, place, "Trainer.step", partial(trainer.step, *batch(before + 1)), usual_s)
    done = trainer.step_count - before
    met = landed in (Landed.BEFORE, Landed.INSIDE)
    if done not in (0, 1) or not (met or done) or trainer.model.torn is not None:
        raise Finding("failed", f"step {before + 1} was disturbed {landed}; {done} steps were counted, and the model is "
                                f"{trainer.model.torn or 'whole'}")


async def _disturb(round: Round, place: EngineSetup, name: str, call: Call, usual_s: float) -> Landed:
    """Disturb a call at a turn or at a time, which covers all waits of the caller."""
    how = replace(draw_disturbance(round.chance, 0, usual_s, _TURNS), elsewhere=False)
    if how.how == "loop ends":
        how = replace(how, how="cancel")
    landed = await disturbed(call, how, Reached(0))
    round.tally.disturb(name, how.how, landed, place.kind)
    return landed


#: Plays of a round, with the weight of each in the draw.
PLAYS = {play_training: 2, play_program: 2, play_calls: 4, play_lives: 2}
