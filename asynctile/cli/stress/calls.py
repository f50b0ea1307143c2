"""Every public coroutine of engine, model and trainer, disturbed one after another (disturb.py) in the life of one engine.

After each the engine must be as if nobody had asked: no task, no loan, no lock left; a step has counted or changed nothing. At
the end weights and moments are bit for bit those of a training that nobody disturbed. Covers `play_calls` and `play_lives`,
which disturbs the opening and closing of engines themselves; what must not be left then is leaks.py.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from asynctile.cli.stress.disturb import Call, Reached, disturbed, draw_disturbance
from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.leaks import Held
from asynctile.cli.stress.models import (
    CONFIG,
    TILE,
    State,
    batch,
    draw_recipe,
    draw_training_place,
    expect_state,
    new_trainer,
    state_of,
)
from asynctile.cli.stress.place import StressEngine
from asynctile.cli.stress.round import WATCHDOG_S, Round
from asynctile.errors import BudgetError, CheckpointError
from asynctile.layers import GPT2, Trainer
from asynctile.program.needs import demand_of
from asynctile.storage.tile import Tile

__all__ = ["play_calls", "play_lives"]

_STEPS = 12
#: Calls in the life of one engine, and lives in a round.
_CALLS, _LIVES = 24, 6
#: What is supposed of a call that has not been seen to its end yet.
_AWAITS = 12
#: What a share gets of each cap.
_LENT_NBYTES = 64 << 10
_STEPPING = {"Trainer.step", "Trainer.run"}
#: So often is each of these in the draw: steps in a row are what is played.
_OFTEN = 4
#: Between two looks at what closes by itself.
_LOOK_S = 0.005


class Calls:
    """The public coroutines, on one engine. `awaits`: of each, the most that were counted.

    base: a checkpoint that is there. folder: for what is saved.
    """

    def __init__(self, round: Round, engine: StressEngine, trainer: Trainer, folder: Path, base: Path) -> None:
        self.round, self.engine, self.trainer = round, engine, trainer
        self.folder, self.base = folder, base
        self.awaits: dict[str, int] = {}
        self.caps = _caps_of(engine)
        self.all: dict[str, Call] = {
            "GPT2.create": self._create, "GPT2.from_pretrained": self._from_pretrained, "GPT2.state_dict": self._state_dict,
            "GPT2.save_pretrained": self._save_pretrained, "GPT2.logits": self._logits, "GPT2.loss": self._loss,
            "GPT2.generate": self._generate, "Trainer.load": self._load, "Trainer.save": self._save,
            "Trainer.save behind": self._save_behind, "Trainer.saved": self._saved, "Trainer.gradients": self._gradients,
            "Trainer.step": self._step, "Trainer.run": self._run, "Engine.read": self._read,
            "Engine.synchronize": self._synchronize, "Engine.share": self._share,
        }  # fmt: skip

    async def disturb(self, name: str) -> None:
        """One call; Finding if it leaves anything."""
        how = draw_disturbance(self.round.chance, self.awaits.get(name, _AWAITS))
        reached, before = Reached(how.at), self.trainer.step_count
        self.engine.count = reached.count
        try:
            ended = await disturbed(self.all[name], how, reached)
        finally:
            self.engine.count = None
        await self._settle()
        self.awaits[name] = max(self.awaits.get(name, _AWAITS), reached.awaits)
        self.round.tally.cancellations += not ended
        self.round.tally.disturbed[f"{name}: {how.how}"] += not ended
        self._expect_as_before(f"{name} that was disturbed ({how.how})", before, name in _STEPPING)

    def _expect_as_before(self, what: str, before: int, steps: bool) -> None:
        engine, trainer = self.engine, self.trainer
        if not 0 <= trainer.step_count - before <= 2 * steps or trainer.model.torn is not None:
            raise Finding("failed", f"{what} counted {trainer.step_count - before} steps, the model is "
                                    f"{trainer.model.torn or 'whole'}")
        holders = [f"{lock.what} held by {lock.holder}" for lock in (engine.busy, trainer.model.changing) if lock.holder]
        loans = [f"a loan of {loan.nbytes} bytes to {loan.who}" for loan in engine.tiers.caps.loans]
        if (caps := _caps_of(engine)) != self.caps:
            raise Finding("leaked", f"{what} left caps of {caps} bytes where there were {self.caps}")
        if holders or loans:
            raise Finding("leaked", f"{what} left {', '.join([*holders, *loans])}")

    async def _settle(self) -> None:
        """Wait for what winds down after its caller has gone, and for a save behind; Finding for a task that stays."""

        async def wind_down() -> list[str]:
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                _, pending = await asyncio.wait(others, timeout=WATCHDOG_S)
                if pending:
                    return [task.get_name() for task in pending]
            return []

        if left := await self.engine.call(wind_down()):
            raise Finding("leaked", f"tasks that never end on the engine's loop: {', '.join(left)}")
        try:
            await self.trainer.saved()
        except CheckpointError as error:
            raise Finding("failed", f"a save that was left to itself failed: {error}") from error

    async def _create(self) -> None:
        await (await GPT2.create(self.engine, CONFIG, seed=1, tile=TILE)).release()

    async def _from_pretrained(self) -> None:
        await (await GPT2.from_pretrained(self.engine, self.base, tile=TILE)).release()

    async def _load(self) -> None:
        await (await Trainer.load(self.engine, self.base)).model.release()

    async def _state_dict(self) -> None:
        await self.trainer.model.state_dict()

    async def _save_pretrained(self) -> None:
        await self.trainer.model.save_pretrained(self.folder / "model")

    async def _logits(self) -> None:
        await self.trainer.model.logits(batch(1)[0])

    async def _loss(self) -> None:
        await self.trainer.model.loss(*batch(1))

    async def _generate(self) -> None:
        async for _ in self.trainer.model.generate([1, 2], max_new_tokens=3, seed=1):
            pass

    async def _save(self) -> None:
        await self.trainer.save(self.folder / "checkpoint")

    async def _save_behind(self) -> None:
        await self.trainer.save(self.folder / "checkpoint", wait=False)

    async def _saved(self) -> None:
        await self.trainer.save(self.folder / "checkpoint", wait=False)
        await self.trainer.saved()

    async def _gradients(self) -> None:
        await self.trainer.gradients(*batch(1))

    async def _step(self) -> None:
        await self.trainer.step(*batch(self.trainer.step_count + 1))

    async def _run(self) -> None:
        first = self.trainer.step_count + 1
        async for _ in self.trainer.run([batch(first), batch(first + 1)]):
            pass

    async def _read(self) -> None:
        await self.engine.read_all(self.trainer.model.weights())

    async def _synchronize(self) -> None:
        await self.engine.synchronize()

    async def _share(self) -> None:
        on_device = {"device_memory": _LENT_NBYTES} if self.engine.has_link else {}
        sizes: dict[str, Any] = {"host_memory": _LENT_NBYTES, **on_device}
        tile = Tile("lent", (64, 64), persistent=True)
        try:
            async with self.engine.share(**sizes) as part:
                await part.reserve(demand_of([], [tile]))
                await part.store([(tile, np.ones(tile.shape, np.float32))])
                await part.read(tile)
        except BudgetError:
            pass  # at the floor there is nothing to lend


def _caps_of(engine: StressEngine) -> list[int | None]:
    """The bytes of each tier, those of what is lent not among them."""
    return [tier.arena.cap for tier in engine.tiers.from_the_top()]


async def play_calls(round: Round) -> None:
    """The life of one engine."""
    recipe = draw_recipe(round.chance)
    states, _ = await round.course.follow(recipe, _STEPS)
    place = draw_training_place(round.chance, recipe)
    if round.chance.random() < 0.5:  # room for the copy of a save behind training
        place = replace(place, host_memory=None)
    async with round.engine(place) as engine:
        trainer = await new_trainer(engine, recipe, place.update, round.tally)
        base = round.folder / "base"
        await trainer.save(base)
        calls = Calls(round, engine, trainer, round.folder, base)
        for _ in range(_CALLS):
            names = sorted(calls.all.keys() - _STEPPING)
            if trainer.step_count + 2 <= _STEPS:
                names += _OFTEN * sorted(_STEPPING)
            await calls.disturb(round.chance.choice(names))
        await _expect_undisturbed(engine, trainer, states, round.folder / "checkpoint")


async def _expect_undisturbed(engine: StressEngine, trainer: Trainer, states: list[State], checkpoint: Path) -> None:
    """The training goes on to its last step, and is what it should be; so is the newest of the saves that came to an end."""
    while trainer.step_count < _STEPS:
        await trainer.step(*batch(trainer.step_count + 1))
    expect_state(await state_of(trainer), states[_STEPS], f"after step {_STEPS}, with disturbed calls between")
    await trainer.model.release()
    if checkpoint.exists():
        loaded = await Trainer.load(engine, checkpoint)
        expect_state(await state_of(loaded), states[loaded.step_count], "in a checkpoint saved between disturbed calls")
        await loaded.model.release()


async def play_lives(round: Round) -> None:
    """Engines whose opening, work and closing are disturbed together, at any turn of the caller's loop."""
    recipe = draw_recipe(round.chance)
    place = draw_training_place(round.chance, recipe)
    round.spill.mkdir(exist_ok=True)

    async def live() -> None:
        async with StressEngine(place, round.spill, watchdog=WATCHDOG_S) as engine:
            trainer = await new_trainer(engine, recipe, place.update, round.tally)
            await trainer.save(round.folder / "checkpoint", wait=False)

    turns = await _turns_of(live())
    for _ in range(_LIVES):
        before = Held.now(round.spill)
        how, reached = draw_disturbance(round.chance, 0), Reached(0)
        how = replace(how, at=0, turns=round.chance.randint(0, turns))
        ended = await disturbed(live, how, reached)
        round.tally.cancellations += not ended
        round.tally.disturbed[f"opening and closing: {how.how}"] += not ended
        await _expect_gone(before, round.spill)


async def _turns_of(work: Awaitable[object]) -> int:
    """How many turns of this loop `work` takes."""
    task, turns = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    task.result()
    return turns


async def _expect_gone(before: Held, spill: Path) -> None:
    """Whoever lost its loop cannot wait for the engine to close, which it does by itself."""
    for _ in range(int(WATCHDOG_S / _LOOK_S)):
        if Held.now(spill).threads <= before.threads:
            break
        gc.collect()  # whose loop has ended is thrown away by the collector alone
        await asyncio.sleep(_LOOK_S)
    before.expect_no_more(spill)
