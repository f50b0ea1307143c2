"""Lives of engines whose calls, opening and closing are disturbed, one after another or several at once.

To disturb a call is to cancel it, let it time out, or end the loop that it runs on (disturb.py). After the calls, weights
and moments are bit for bit those of an undisturbed training: its count says which steps counted. Covers three kinds of life.
calls.py has the calls, settled.py what must hold between them, leaks.py what must hold afterwards.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from asynctile.cli.stress.calls import LENDING, STEPPING, Coroutines
from asynctile.cli.stress.disturb import Call, Landed, Reached, disturbed, draw_disturbance
from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.leaks import Held
from asynctile.cli.stress.models import batch, new_trainer
from asynctile.cli.stress.place import StressEngine
from asynctile.cli.stress.round import WATCHDOG_S, Round
from asynctile.cli.stress.settled import LOOK_S, Settled
from asynctile.cli.stress.training import StressTraining
from asynctile.errors import BudgetError, CheckpointError, DeviceError
from asynctile.events import StepDone
from asynctile.hub import Events
from asynctile.layers import Trainer
from asynctile.layers.model import model_state_of
from asynctile.layers.report import StepReport

__all__ = ["LIVES", "play_calls", "play_lives"]

_STEPS = 12
#: Disturbed calls in the life of one engine, lives in a round, and most calls at once.
_CALLS, _LIVES, _CROWD = 24, 6, 4
#: Share of draws with several calls at once.
_CROWDED = 0.25
#: Assumed awaits and seconds of a call that was not yet seen to its end.
_AWAITS, _USUAL_S = 12, 0.01
#: Weight of each call that steps in the draw: only steps in a row are played.
_OFTEN = 4
#: Seconds of each life. They take some ten milliseconds, and thousands of turns of an otherwise idle loop.
_LIFE_S = {"Engine as a block": 0.2, "Engine.open": 0.06, "Engine.aclose": 0.02, "Engine.open and aclose": 0.06}
_LIFE_TURNS = 3000
#: Events that may wait for the reader over a whole life.
_EVENTS = 10_000


class Disturber:
    """Calls on one engine, each of which is disturbed."""

    def __init__(self, training: StressTraining, trainer: Trainer, engine: StressEngine, base: Path) -> None:
        round = training.round
        self.calls = Coroutines(engine, trainer, round.folder, base)
        self._round, self._place, self._trainer = round, training.place, trainer
        self._awaits: dict[str, int] = {}
        self._usual_s: dict[str, float] = {}
        names = {"spill", "base", "model", "checkpoint", "adapter"}
        self._settled = Settled(engine, [model_state_of(trainer.model).changing], round.folder, names)

    def draw(self) -> list[str]:
        """Return the names of the next calls, made at once."""
        chance, names = self._round.chance, sorted(self.calls.all.keys() - STEPPING)
        if self._trainer.step_count + 2 <= _STEPS:
            names += _OFTEN * sorted(STEPPING)
        drawn = [chance.choice(names)]
        if chance.random() < _CROWDED:
            others = [name for name in names if name not in STEPPING or drawn[0] not in STEPPING]
            drawn += chance.sample(sorted({*others} - STEPPING - {drawn[0]}), chance.randint(1, _CROWD - 1))
        return drawn

    async def disturb(self, names: Sequence[str]) -> None:
        """Make these calls and disturb them; Finding if they leave anything."""
        before = self._trainer.step_count
        several = len(names) > 1
        results = await asyncio.gather(*(self._one(name, several or name in LENDING) for name in names), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        what = " and ".join(f"{name} ({result})" for name, result in zip(names, results, strict=True))
        await self._settled.wind_down(what)
        try:
            await self._trainer.saved()
        except CheckpointError as error:
            raise Finding("failed", f"after {what}, a save in the background failed: {error}") from error
        await self.calls.clear()
        await self._settled.expect(what, model_state_of(self._trainer.model).standing())
        steps = self._trainer.step_count - before
        if not 0 <= steps <= 2 * (not STEPPING.isdisjoint(names)) or self._trainer.model.torn is not None:
            raise Finding("failed", f"{what} counted {steps} steps, and the model is {self._trainer.model.torn or 'whole'}")

    async def _one(self, name: str, may_be_refused: bool) -> str:
        """Make the call `name` and return how it was disturbed.

        may_be_refused: the engine may have too little room, or other calls may have fragmented it.
        """
        loop, awaits = asyncio.get_running_loop(), self._awaits.get(name, _AWAITS)
        how = draw_disturbance(self._round.chance, awaits, self._usual_s.get(name, _USUAL_S))
        reached, began_s = Reached(how.at), loop.time()
        try:
            landed = await disturbed(self.calls.all[name], how, reached)
        except (BudgetError, ExceptionGroup) as error:
            if not (may_be_refused and is_refusal(error)):
                raise
            return "refused"
        if landed in (Landed.AFTER, Landed.NEVER):
            self._usual_s[name] = loop.time() - began_s
        self._awaits[name] = max(awaits, reached.awaits)
        self._round.tally.disturb(name, how.how, landed, self._place.kind)
        return f"{how.how}, {landed}"


def is_refusal(error: Exception) -> bool:
    """Return whether an error, or every error of a group, is a BudgetError."""
    return isinstance(error, BudgetError) or (isinstance(error, ExceptionGroup) and error.split(BudgetError)[1] is None)


async def play_calls(round: Round) -> None:
    """Play the life of one engine, and of a training on it."""
    training = StressTraining(round, _STEPS)
    await training.begin()
    if round.chance.random() < 0.5:  # room for the copy of a background save
        training.place = replace(training.place, host_memory=None)
    async with training.on_engine() as (engine, trainer):
        reader = engine.events(_EVENTS)
        base = round.folder / "base"
        await trainer.save(base)
        calls = Disturber(training, trainer, engine, base)
        for _ in range(_CALLS):
            await calls.disturb(calls.draw())
        await training.go_on(trainer)
        await trainer.model.release()
        if training.checkpoint.exists():  # the newest complete save
            loaded = await Trainer.load(engine, training.checkpoint)
            await training.expect(loaded)
            await loaded.model.release()
    await _expect_told(reader, trainer)


async def _expect_told(reader: Events, trainer: Trainer) -> None:
    """Check that each counted step was told once and in order, even if its caller had stopped waiting."""
    told = [event.step async for event in reader if isinstance(event, StepDone) and event.share == "engine"]
    if told != list(range(1, trainer.step_count + 1)):
        raise Finding("lost", f"events reported steps {told}, but {trainer.step_count} steps counted")


async def play_lives(round: Round) -> None:
    """Play engines whose opening, work and closing are disturbed, together and each by itself."""
    training = StressTraining(round, 1)
    round.spill.mkdir(exist_ok=True)
    for _ in range(_LIVES):
        before = Held.now(round.spill)
        name = round.chance.choice(list(LIVES))
        await LIVES[name](_Life(training, name))
        await _expect_gone(before, round.spill)


class _Life:
    """One engine, used for as long as it takes to disturb it. name: of what is disturbed."""

    def __init__(self, training: StressTraining, name: str) -> None:
        self.name, self._recipe, self._checkpoint = name, training.recipe, training.checkpoint
        self._round, self._place = training.round, training.place
        self.engine = StressEngine(self._place, self._round.spill, watchdog=WATCHDOG_S)

    async def block(self) -> None:
        """Disturb opening, work and closing."""

        async def live() -> None:
            async with self.engine:
                await self._work()

        await self._disturb(live)

    async def opened(self) -> None:
        """Disturb `open`, and nothing else."""
        if await self._disturb(self.engine.open) is not Landed.INSIDE:
            await self.engine.aclose()  # after INSIDE there is nothing to close

    async def closed(self) -> None:
        """Disturb `aclose`, and nothing else, while a step and a reader of events are in progress, and sometimes a save.

        The step must end with a report or a DeviceError. Any other error is raised as it is; any other result is a Finding.
        """
        engine = await self.engine.open()
        trainer = await new_trainer(engine, self._recipe, self._place.update)
        step, reader = asyncio.ensure_future(trainer.step(*batch(1))), asyncio.ensure_future(_read(engine.events()))
        if self._round.chance.random() < 0.5:
            await trainer.save(self._checkpoint, wait=False)
        if await self._disturb(engine.aclose) is Landed.BEFORE:
            await engine.aclose()  # otherwise the engine is closed, however the call ended
        await reader
        try:
            report: object = await step
        except DeviceError as error:
            report = error
        if not isinstance(report, StepReport | DeviceError):
            raise Finding("failed", f"a step in a closing engine ended with {report!r}")

    async def both(self) -> None:
        """Disturb opening in one task and closing in another."""

        async def opening() -> None:
            with suppress(DeviceError):  # the engine was closed first, or meanwhile
                await self._disturb(self.engine.open)

        await asyncio.gather(opening(), self._disturb(self.engine.aclose))
        await self.engine.aclose()

    async def _work(self) -> None:
        trainer = await new_trainer(self.engine, self._recipe, self._place.update, self._round.tally)
        await trainer.step(*batch(1))
        await trainer.save(self._checkpoint, wait=False)

    async def _disturb(self, call: Call) -> Landed:
        how, reached = draw_disturbance(self._round.chance, 0, _LIFE_S[self.name], _LIFE_TURNS), Reached(0)
        landed = await disturbed(call, how, reached)
        self._round.tally.disturb(self.name, how.how, landed, self._place.kind)
        return landed


LIVES = {"Engine as a block": _Life.block, "Engine.open": _Life.opened, "Engine.aclose": _Life.closed,
         "Engine.open and aclose": _Life.both}  # fmt: skip


async def _read(events: Events) -> int:
    return len([event async for event in events])


async def _expect_gone(before: Held, spill: Path) -> None:
    """Wait until engines whose loop is gone have closed by themselves; Finding if they leave anything."""
    for _ in range(int(WATCHDOG_S / LOOK_S)):
        if Held.now(spill).threads <= before.threads:
            break
        gc.collect()  # only the collector discards tasks of an ended loop
        await asyncio.sleep(LOOK_S)
    before.expect_no_more(spill)
