"""Scenario `train`: a few steps of a very small GPT-2 under any budget, depth and tiers, bitwise equal to a run all in RAM.

Most steps follow each other and are played; between some the round does what a service would do, which must change no bit.
Sometimes the budget is below the floor: that must be refused before any work.
"""

from __future__ import annotations

from dataclasses import replace

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.models import batch, floor_of, new_trainer
from asynctile.cli.stress.round import Round
from asynctile.cli.stress.training import StressTraining
from asynctile.errors import BudgetError
from asynctile.layers import Trainer

__all__ = ["play"]

_STEPS = 6
_BETWEEN = 0.4
_DONE_BETWEEN = ("loss", "losses", "loss of another shape", "logits", "answer", "gradients", "save", "save behind")
_REFUSED = 0.2


async def play(round: Round) -> bool:
    """Play a round. Every round counts."""
    training = StressTraining(round, _STEPS)
    if round.chance.random() < _REFUSED:
        await _refuse(training)
    await training.begin()
    async with training.on_engine() as (_, trainer):
        for _ in range(_STEPS):
            if round.chance.random() < _BETWEEN:
                await _between(round, trainer)
            await training.step(trainer)
        await trainer.saved()
        await training.expect(trainer)
    return True


async def _between(round: Round, trainer: Trainer) -> None:
    """Do one of the things that happen between two steps: a validation, an answer, a save, other programs."""
    model, tokens, targets = trainer.model, *batch(round.chance.randrange(1, 9))
    what = round.chance.choice(_DONE_BETWEEN)
    if what in ("loss", "losses"):
        for _ in range(1 if what == "loss" else 3):
            await model.loss(tokens, targets)
    elif what == "loss of another shape":
        await model.loss(tokens[:, :5], targets[:, :5])
    elif what == "logits":
        await model.logits(tokens)
    elif what == "answer":
        async for _ in model.generate([1, 2], max_new_tokens=2, seed=1):
            pass
    elif what == "gradients":
        await trainer.gradients(tokens, targets)
    else:
        await trainer.save(round.folder / "checkpoint", wait=what == "save")


async def _refuse(training: StressTraining) -> None:
    """Check that one byte below the floor is refused before any work, with the floor in the error."""
    round, place = training.round, training.place
    floor = floor_of().rounded(place.alignment).floor_nbytes
    if place.device == "cpu":
        below = replace(place, host_memory=floor - 1)
    else:
        below = replace(place, device_memory=floor - 1)
    async with round.engine(below) as engine:
        try:
            trainer = await new_trainer(engine, training.recipe)
        except BudgetError as error:
            if error.floor != floor or engine.statistics().operations:
                raise Finding("failed", f"a cap of {floor - 1} bytes, one below the floor, was refused with a floor of "
                                        f"{error.floor} after {engine.statistics().operations} operations") from error
            round.tally.refusals += 1
            return
        await trainer.model.release()
        raise Finding("failed", f"a cap of {floor - 1} bytes, one below the floor, was not refused")
