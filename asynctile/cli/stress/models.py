"""A very small GPT-2, and the course of its training with everything in RAM, which every other training must repeat.

Covers the model, its batches and its states after each step. Scenarios `train`, `faults`, `cancel` and `kill` compare with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile import Engine
from asynctile.cli.stress.finding import expect_bytes
from asynctile.cli.stress.place import MOST_DEVICES, EngineSetup, draw_place
from asynctile.cli.stress.tally import Tally
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from asynctile.layers.activations import AUTO, kept_if
from asynctile.layers.floor import floor_demand
from asynctile.layers.model import model_state_of
from asynctile.layers.parameters import MOMENTS, Parameters
from asynctile.layers.report import StepReport
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.program.needs import demand_of
from asynctile.storage.demand import Demand

__all__ = [
    "CONFIG", "TILE", "Course", "Recipe", "State", "StressTrainer", "batch", "draw_recipe", "draw_training_place",
    "expect_state", "floor_of", "loaded_trainer", "new_trainer", "state_of",
]  # fmt: skip

CONFIG = GPT2Config(n_layer=1, n_head=2, n_embd=20, block_size=16, vocab_size=35)
#: Smaller than the width, so that there are several tiles; it divides no dimension.
TILE = 12
_BATCH, _LENGTH = 4, 13
_SEED = 5
#: Micro-batches and replicas.
_PARTS = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 4))

State = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Recipe:
    """The settings on which a training's bits depend, beside model and data; and `recompute`, on which they do not."""

    clip_norm: float | None = None
    micro_batches: int = 1
    replicas: int = 1
    recompute: bool | str = AUTO


def batch(step: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return tokens and targets of a step, counted from 1."""
    numbers = np.random.default_rng(step)
    tokens, targets = numbers.integers(0, CONFIG.vocab_size, (2, _BATCH, _LENGTH))
    return tokens, targets


class StressTrainer(Trainer):
    """A trainer that counts its steps in `tally`, even if their callers are gone; None: it does not count."""

    tally: Tally | None = None

    async def _step_for(
        self, counted: Callable[[], None], tokens: Any, targets: Any, positions: Any = None
    ) -> StepReport:
        def noted() -> None:
            if self.tally is not None and self.last_report is not None:
                self.tally.step(self.last_report.played)
            counted()

        return await super()._step_for(noted, tokens, targets, positions)


async def new_trainer(engine: Engine, recipe: Recipe, update: str = "device", tally: Tally | None = None) -> StressTrainer:
    model = await GPT2.create(engine, CONFIG, seed=_SEED, tile=TILE)
    optimizer = AdamW(lr=1e-2, warmup=2)
    trainer = StressTrainer(model, optimizer, clip_norm=recipe.clip_norm, micro_batches=recipe.micro_batches,
                            replicas=recipe.replicas, recompute=recipe.recompute, update=update)
    trainer.tally = tally
    return trainer


async def loaded_trainer(engine: Engine, path: Path, update: str, tally: Tally) -> StressTrainer:
    """Return a trainer from a checkpoint."""
    trainer = await StressTrainer.load(engine, path, update=update)
    trainer.tally = tally
    return trainer


async def state_of(trainer: Trainer) -> State:
    """Return the current weights and moments."""
    model = model_state_of(trainer.model)
    await model.prepare_moments()
    found: State = {}
    for name, parameter in model.parameters.items():
        for family in ("weights", *MOMENTS):
            found[f"{name} {family}"] = await model.gather(parameter, getattr(parameter, family))
    return found


def expect_state(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], when: str) -> None:
    for name, value in expected.items():
        expect_bytes(f"{name} {when}", found[name], value)


def draw_recipe(chance: random.Random) -> Recipe:
    clip_norm, parts = chance.choice((None, None, 0.5)), chance.choice(_PARTS)
    return Recipe(clip_norm, *parts, chance.choice((True, False, AUTO)))


def draw_training_place(chance: random.Random, recipe: Recipe, *, spill: bool | None = None) -> EngineSetup:
    """Draw any budget from the floor to all that a step wants, either place of updates, and at most a device per replica."""
    update = chance.choice(("device", "host"))
    most = min(recipe.replicas, MOST_DEVICES)
    place = draw_place(chance, step_demand(recipe, update), least=floor_of(), share=1.0, spill=spill, devices=most)
    return replace(place, update=update)


@cache
def step_demand(recipe: Recipe, update: str) -> Demand:
    """Return the memory that a step of this recipe demands of its tiers."""
    parameters = Parameters(CONFIG, Tiling(CONFIG, TILE))
    kind = "step" if recipe.clip_norm is None else "step_clipped"
    rows = parameters.tiling.rows(_BATCH, _LENGTH, recipe.micro_batches, recipe.replicas)
    on_host = (tile for parameter in parameters.values() for tile in parameter.weights.values() if update == "host")
    kept = kept_if(recipe.recompute is True, CONFIG)
    program = record(kind, parameters, rows, kept=kept, on_host=frozenset(on_host))
    return demand_of([program], parameters.states())


@cache
def floor_of() -> Demand:
    """Return the floor of the model, which any budget must reach."""
    return floor_demand(CONFIG, TILE)


class Course:
    """States after each step of an undisturbed training with everything in RAM, computed on demand and once."""

    def __init__(self) -> None:
        self._states: dict[Recipe, list[State]] = {}
        self._reports: dict[Recipe, list[tuple[float, float]]] = {}

    async def follow(self, recipe: Recipe, steps: int) -> tuple[list[State], list[tuple[float, float]]]:
        """Return the states after 0, 1, ... steps, and (loss, gradient norm) of each step."""
        if len(self._states.get(recipe, ())) <= steps:
            async with Engine("cpu") as engine:
                trainer = await new_trainer(engine, recipe)
                states, reports = [await state_of(trainer)], []
                for number in range(1, steps + 1):
                    report = await trainer.step(*batch(number))
                    reports.append((report.loss, report.grad_norm))
                    states.append(await state_of(trainer))
                await trainer.model.release()
            self._states[recipe], self._reports[recipe] = states, reports
        return self._states[recipe], self._reports[recipe]
