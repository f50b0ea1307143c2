"""Stories: trainings on the soft GPU with other work of the engine between and beside their steps, in random order.

A story run by coroutines and run by graphs must give the same numbers and end with the same bits. test_cuda_replayed_between.py
runs a few. To run more, for as long as you like, including cases that `make test` has no time for:

    python -m tests.layers.stories --minutes 10 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from asynctile import Engine
from asynctile.layers import Trainer
from asynctile.layers.model import model_state_of
from asynctile.memory.caps import Loan
from asynctile.ops import fill
from asynctile.share import runtime_of
from asynctile.storage.faults import SURVIVED, Faults
from tests.cuda.driver import SoftDriver
from tests.execute.interleaving import SHORT, a_weight
from tests.layers.replaying import PLACES, STATES, place_of, training
from tests.layers.training import OPTIMIZER, Tensors, assert_same_tensors, batches_of, lively, states_of

BATCHES = batches_of(SHORT, 16)
#: Options of the trainer, drawn at random.
OPTIONS: dict[str, list[Any]] = {
    "update": ["device", "host", "mixed"], "clip_norm": [None, 0.3], "recompute": [True, False, "auto"],
    "micro_batches": [1, 2],
}  # fmt: skip
#: The most turns of the engine's loop that a step gets before it is cancelled.
TURNS = 120


class Story:
    """One run of a story. told: numbers that must be equal in every run. played: whether each step was played."""

    def __init__(self, engine: Engine, trainer: Trainer, folder: Path, faults: Faults, seed: int) -> None:
        self.engine, self.trainer, self.folder, self.faults = engine, trainer, folder, faults
        self.told: list[Any] = []
        self.played: list[bool] = []
        self._chance = random.Random(seed)
        self._batch = 0

    async def go_on(self, actions: list[str]) -> None:
        for action in actions:
            await getattr(self, action)()

    def _next(self) -> Any:
        self._batch += 1
        return BATCHES[self._batch % len(BATCHES)]

    async def step(self) -> None:
        report = await self.trainer.step(*self._next())
        self.told += [report.loss, report.grad_norm]
        self.played.append(report.played)

    async def steps(self) -> None:
        for _ in range(3):
            await self.step()

    async def short_step(self) -> None:
        tokens, targets = self._next()
        self.told.append((await self.trainer.step(tokens[:, :4], targets[:, :4])).loss)

    async def loss(self) -> None:
        self.told.append(await self.trainer.model.loss(*self._next()))

    async def logits(self) -> None:
        self.told.append((await self.trainer.model.logits(self._next()[0])).tobytes())

    async def gradients(self) -> None:
        found = await self.trainer.gradients(*self._next())
        self.told.append([found[name].tobytes() for name in sorted(found)])

    async def text(self) -> None:
        prompt = [self._chance.randrange(35) for _ in range(3)]
        self.told.append([token async for token in self.trainer.model.generate(prompt, max_new_tokens=3, seed=1)])

    async def read(self) -> None:
        self.told.append((await runtime_of(self.engine).read(a_weight(self.trainer))).tobytes())

    async def launch(self) -> None:
        """Launch an operation by hand."""
        await runtime_of(self.engine).launch(fill(a_weight(self.trainer), self._chance.random()))

    async def save(self) -> None:
        """Start a save that goes on beside the next steps."""
        await self.trainer.saved()
        await self.trainer.save(self.folder / f"saved {len(self.told)}", wait=False)

    async def skip(self) -> None:
        """Take a step without a finite loss."""
        parameter = model_state_of(self.trainer.model).parameters["transformer.ln_f.bias"]
        kept = await model_state_of(self.trainer.model).gather(parameter, parameter.weights)
        tile = parameter.weights[0, 0]
        await runtime_of(self.engine).store([(tile, np.full(tile.shape, np.nan, np.float32))])
        assert (await self.trainer.step(*BATCHES[0])).skipped
        await runtime_of(self.engine).store([(tile, kept[parameter.index(0, 0)])])

    async def cancel(self) -> None:
        """Cancel a step in its middle; if it did not count, repeat it."""
        batch, count = self._next(), self.trainer.step_count
        step = asyncio.create_task(self.trainer.step(*batch))
        for _ in range(self._chance.randrange(TURNS)):
            await runtime_of(self.engine).call(asyncio.sleep(0))
        step.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await step
        if self.trainer.step_count == count:
            await self.trainer.step(*batch)
        assert self.trainer.step_count == count + 1 and self.trainer.last_report is not None
        self.told.append(self.trainer.last_report.loss)

    async def borrow(self) -> None:
        """Lend RAM while a step runs."""

        async def lent() -> Loan | None:
            async with runtime_of(self.engine).exclusive():
                return runtime_of(self.engine).tiers.caps.borrow(16 << 10, "a story")

        async def returned(loan: Loan) -> None:
            loan.give_back()

        loan = await runtime_of(self.engine).call(lent())
        await self.step()
        if loan is not None:
            await runtime_of(self.engine).call(returned(loan))

    async def share(self) -> None:
        """Train another model on a share of the caps, beside steps of this one."""
        if runtime_of(self.engine).device_cap < 4 * STATES:
            return
        async with self.engine.share(device_memory=STATES // 2, host_memory=4 * STATES) as part:
            part.plays = self.engine.plays
            other = Trainer(await lively(part, SHORT, seed=3), OPTIMIZER, update="host", replicas=self.trainer.replicas)

            async def beside() -> list[float]:
                return [(await other.step(*batch)).loss for batch in BATCHES[:3]]

            losses, _ = await asyncio.gather(beside(), self.steps())
            self.told += losses

    async def hiccup(self) -> None:
        """Let the disk fail once, with a fault that a tier survives."""
        self.faults.arm(self._chance.choice(sorted(SURVIVED)), after=self._chance.randrange(100))
        await self.step()


ACTIONS = [name for name in vars(Story) if not name.startswith("_") and name != "go_on"]


async def tell(
    where: str, options: dict[str, Any], actions: list[str], seed: int, *, plays: bool, **more: Any
) -> tuple[list[Any], list[bool], Tensors]:
    """Return the numbers of a story, whether each step was played, and the states at the end. more: of the engine."""
    faults = Faults(seed, delay_s=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        place = place_of(where, Path(folder), **more)
        if "spill" in place:
            place["wrap_spill"] = faults.wrap
        async with training(place, plays=plays, **options) as (engine, trainer):
            story = Story(engine, trainer, Path(folder), faults, seed)
            await story.go_on(actions)
            await trainer.saved()
            return story.told, story.played, await states_of(trainer)


def drawn(seed: int) -> tuple[str, dict[str, Any], list[str]]:
    """Draw a place, options of a trainer, and the actions, by a seed."""
    chance = random.Random(seed)
    actions = ["steps"]
    for _ in range(4):
        actions += [chance.choice(ACTIONS), chance.choice(["step", "steps"])]
    return chance.choice(sorted(PLACES)), {name: chance.choice(values) for name, values in OPTIONS.items()}, actions


async def check(seed: int, shape: Callable[..., None]) -> list[bool]:
    """Run one story by coroutines and by graphs; return whether each step was played.

    shape: sets the options of the driver that opens next.
    """
    where, options, actions = drawn(seed)
    precision = "bf16" if seed % 3 == 0 else "fp32"
    shape()
    expected, nothing, states = await tell(where, options, actions, seed, plays=False, precision=precision)
    assert not any(nothing)
    shape(seed=seed)
    found, played, others = await tell(where, options, actions, seed, plays=True, precision=precision)
    assert found == expected, (where, options, actions)
    assert_same_tensors(others, states)
    return played


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parsed = parser.parse_args(arguments)
    options: dict[str, Any] = {}

    def shape(**more: Any) -> None:
        options.clear()
        options.update(more)

    seed, until = parsed.seed, time.monotonic() + 60 * parsed.minutes

    def open_soft(_: str) -> SoftDriver:
        return SoftDriver(**options)

    with mock.patch("asynctile.device.open_driver", open_soft):
        while time.monotonic() < until:
            played = asyncio.run(check(seed, shape))
            where, chosen, actions = drawn(seed)
            told = f"{sum(played)} of {len(played)} steps played: {' '.join(actions)}"
            print(f"seed {seed}: {where}, {chosen}, {told}", flush=True)
            seed += 1


if __name__ == "__main__":
    sys.exit(main())
