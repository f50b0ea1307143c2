"""Small trainings that are played, with other work between; for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from asynctile import Engine
from asynctile.layers import Trainer
from asynctile.layers.model import model_state_of
from asynctile.program.operation import Operation
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile
from tests.layers.shapes import Shape
from tests.layers.training import NARROW, OPTIMIZER, Tensors, batches_of, lively, states_of

#: The model of NARROW on shorter sequences: 280 operations a step.
SHORT = replace(NARROW, length=6, micro_batches=1)
BATCHES = batches_of(SHORT, 6)
PLACES: dict[str, dict[str, Any]] = {
    "cpu": {"device": "cpu"},
    "resident": {"device": "emulated"},
    "under a cap": {"device": "emulated", "device_memory": SHORT.config.states_nbytes // 4},
}
_by_coroutines: dict[Any, Tensors] = {}


@asynccontextmanager
async def training(
    place: dict[str, Any], *, plays: bool = True, shape: Shape = SHORT, **options: Any
) -> AsyncIterator[tuple[Engine, Trainer]]:
    """Open an engine on `place`, and a trainer of a small model there. options: of Trainer."""
    async with Engine(**place) as engine:
        engine.plays = plays
        model = await lively(engine, shape)
        yield engine, Trainer(model, OPTIMIZER, **{"update": "device", **options})


async def played(trainer: Trainer, *numbers: int) -> list[bool]:
    """Step over these batches; return whether each step was played."""
    return [(await trainer.step(*BATCHES[number])).played for number in numbers]


async def by_coroutines(steps: int, **options: Any) -> Tensors:
    """Return the states after so many steps by coroutines, with everything in RAM; all tests of a process share them."""
    key = steps, *sorted(options.items())
    if key not in _by_coroutines:
        async with training(PLACES["cpu"], plays=False, **options) as (_, trainer):
            assert not any(await played(trainer, *range(steps)))
            _by_coroutines[key] = await states_of(trainer)
    return _by_coroutines[key]


def a_weight(trainer: Trainer) -> Tile:
    return next(iter(model_state_of(trainer.model).parameters["transformer.h.0.mlp.c_fc.bias"].weights.values()))


async def launch_as(engine: Engine, operation: Operation, kernel: Callable[..., None]) -> None:
    """Launch an operation with this kernel; later launches have the true kernel again."""
    true = runtime_of(engine).device.kernels[operation.kernel]
    runtime_of(engine).device.kernels[operation.kernel] = kernel
    await runtime_of(engine).launch(operation)
    runtime_of(engine).device.kernels[operation.kernel] = true


def breaks(*_: Any) -> None:
    raise RuntimeError("the launch broke")
