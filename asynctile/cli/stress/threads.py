"""Scenario `threads`: threads are refused at random while an engine opens, trains and closes; it must close with equal bits.

refusals.py plans the refusals.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from asynctile.cli.stress.leaks import Held
from asynctile.cli.stress.refusals import refused_threads
from asynctile.cli.stress.round import Round
from asynctile.cli.stress.training import StressTraining
from asynctile.errors import DeviceError
from asynctile.threads import REFUSED

__all__ = ["play"]

_STEPS = 4
#: More threads than an engine asks for in a round.
_MOST = 40


async def play(round: Round) -> bool:
    """Play a round. Every round counts."""
    training = StressTraining(round, _STEPS)
    await training.begin()
    before = Held.now(round.spill)
    with refused_threads(_draw(round.chance)) as refused:
        try:
            await _train(training)
        except DeviceError as error:
            if REFUSED not in str(error):
                raise
            round.tally.reported += 1
        else:
            round.tally.survived += bool(refused)
    round.tally.faulted += bool(refused)
    round.tally.injected["thread"] += len(refused)
    before.expect_no_more(round.spill)
    return True


def _draw(chance: random.Random) -> Callable[[int, str], bool]:
    """Draw which threads are refused: one, some, or all from one on."""
    kind, number, share = chance.choice(("one", "some", "rest")), chance.randrange(_MOST), chance.choice((0.02, 0.1, 0.5))
    if kind == "some":
        return lambda *_: chance.random() < share
    return lambda index, _: index == number if kind == "one" else index >= number


async def _train(training: StressTraining) -> None:
    async with training.on_engine() as (_, trainer):
        for _ in range(_STEPS):
            await training.step(trainer)
        await trainer.save(training.checkpoint, wait=training.round.chance.random() < 0.5)
        await trainer.saved()
        await training.expect(trainer)
