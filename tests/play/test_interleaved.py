"""Played steps between everything else that an engine does: the results are those of coroutines, and nothing is left behind.

What the workers do by themselves is test_player.py, how a step is left at its marks test_played_job.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asynctile import Engine, TornModelError
from asynctile.layers import Trainer
from asynctile.ops import fill
from asynctile.program.operation import Operation
from asynctile.storage.tile import Tile
from tests.layers.training import OPTIMIZER, SMALL, Tensors, assert_same_tensors, batches_of, lively, moments_of
from tests.settle import settle

BATCHES = batches_of(SMALL, 6)
PLACES: dict[str, dict[str, Any]] = {
    "cpu": {"device": "cpu"},
    "resident": {"device": "emulated"},
    "under a cap": {"device": "emulated", "device_memory": SMALL.config.states_nbytes // 5},
}


@pytest.fixture(params=PLACES.values(), ids=PLACES.keys())
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


@asynccontextmanager
async def training(place: dict[str, Any], *, plays: bool = True, **options: Any) -> AsyncIterator[tuple[Engine, Trainer]]:
    """An engine on `place`, and a trainer of a small model there. options: of Trainer."""
    async with Engine(**place) as engine:
        engine.plays = plays
        model = await lively(engine, SMALL)
        yield engine, Trainer(model, OPTIMIZER, **{"micro_batches": SMALL.micro_batches, "update": "device", **options})


async def played(trainer: Trainer, *numbers: int) -> list[bool]:
    """Step over these batches, and say which steps were played."""
    return [(await trainer.step(*BATCHES[number])).played for number in numbers]


async def states_of(trainer: Trainer) -> Tensors:
    return await trainer.model.state_dict() | await moments_of(trainer)


def a_weight(trainer: Trainer) -> Tile:
    return next(iter(trainer.model.parameters["transformer.h.0.mlp.c_fc.bias"].weights.values()))


async def launch_as(engine: Engine, operation: Operation, kernel: Callable[..., None]) -> None:
    """Launch an operation that does this; what comes later has the true kernel again."""
    true = engine.kernels[operation.kernel]
    engine.kernels[operation.kernel] = kernel
    await engine.launch(operation)
    engine.kernels[operation.kernel] = true


def breaks(*_: Any) -> None:
    raise RuntimeError("the launch broke")


async def test_a_step_waits_for_an_operation_that_was_launched_by_hand_before_it(place: dict[str, Any]) -> None:
    found = []
    for plays in (True, False):
        async with training(place, plays=plays) as (engine, trainer):
            await played(trainer, 0, 1, 2)
            go, true = threading.Event(), engine.kernels["fill"]

            def held(*args: Any, go: threading.Event = go, true: Callable[..., None] = true) -> None:
                assert go.wait(20)
                true(*args)

            await launch_as(engine, fill(a_weight(trainer), 0.5), held)
            step = asyncio.create_task(trainer.step(*BATCHES[3]))
            await settle(engine)
            assert not step.done(), "a weight of it is still being written"
            go.set()
            assert (await step).played is plays
            found.append(await states_of(trainer))
    assert_same_tensors(*found)


async def test_what_a_launch_by_hand_failed_to_write_is_not_trained_on(place: dict[str, Any]) -> None:
    async with training(place) as (engine, trainer):
        await played(trainer, 0, 1, 2)
        await launch_as(engine, fill(a_weight(trainer), 0.5), breaks)
        with pytest.raises(RuntimeError, match="the launch broke"):
            await engine.synchronize()
        with pytest.raises(TornModelError, match=r"c_fc\.bias.* was lost.*the launch broke"):
            await trainer.step(*BATCHES[3])
