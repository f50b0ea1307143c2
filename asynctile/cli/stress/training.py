"""A training in a round: drawn, done on an engine, and compared bit for bit with the same training undisturbed.

Covers `StressTraining`, for scenarios that train. models.py has the model and its undisturbed course.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.models import (
    State,
    StressTrainer,
    batch,
    draw_recipe,
    draw_training_place,
    expect_state,
    loaded_trainer,
    new_trainer,
    state_of,
)
from asynctile.cli.stress.place import StressEngine
from asynctile.cli.stress.round import Round
from asynctile.layers import Trainer

__all__ = ["StressTraining"]


class StressTraining:
    """A training of `steps` steps. spill: as in draw_place. states: of the undisturbed one, after `begin`."""

    def __init__(self, round: Round, steps: int, *, spill: bool | None = None) -> None:
        self.round, self.steps = round, steps
        self.recipe = draw_recipe(round.chance)
        self.place = draw_training_place(round.chance, self.recipe, spill=spill)
        self.checkpoint = round.folder / "checkpoint"
        self.states: list[State] = []
        self._reports: list[tuple[float, float]] = []

    async def begin(self) -> None:
        """Follow the undisturbed course."""
        self.states, self._reports = await self.round.course.follow(self.recipe, self.steps)

    @asynccontextmanager
    async def on_engine(self, path: Path | None = None, **more: Any) -> AsyncIterator[tuple[StressEngine, StressTrainer]]:
        """Open an engine and make a trainer, or load it from `path`; at the end of the block, release its model."""
        async with self.round.engine(self.place, **more) as engine:
            update, tally = self.place.update, self.round.tally
            trainer = await (new_trainer(engine, self.recipe, update, tally) if path is None else
                             loaded_trainer(engine, path, update, tally))
            yield engine, trainer
            await trainer.model.release()

    async def step(self, trainer: Trainer) -> None:
        """Do the next step; Finding if its loss or gradient differs, or if it was skipped."""
        step = trainer.step_count + 1
        report = await trainer.step(*batch(step))
        if (report.loss, report.grad_norm) != self._reports[step - 1] or trainer.step_count < step:
            loss, norm = self._reports[step - 1]
            raise Finding("lost", f"step {step} reported loss {report.loss!r} and norm {report.grad_norm!r}, which are "
                                  f"{loss!r} and {norm!r} if nothing disturbs it")

    async def go_on(self, trainer: Trainer, *, saving: bool = False) -> None:
        """Do the steps that are left; Finding if the last state differs. saving: with a checkpoint after every second one."""
        while trainer.step_count < self.steps:
            await self.step(trainer)
            if saving and trainer.step_count % 2 == 0:
                await trainer.save(self.checkpoint)
        await self.expect(trainer)

    async def resume(self, *, spill: bool | None = None) -> None:
        """Go on from the checkpoint in a new place."""
        self.place = draw_training_place(self.round.chance, self.recipe, spill=spill)
        async with self.on_engine(self.checkpoint) as (_, trainer):
            await self.go_on(trainer, saving=True)

    async def expect(self, trainer: Trainer) -> None:
        """Raise Finding if weights and moments differ from the undisturbed ones."""
        expect_state(await state_of(trainer), self.states[trainer.step_count], f"after step {trainer.step_count}")
