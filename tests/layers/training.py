"""Short trainings through the real Engine, and comparisons of them. For the tests of this folder and tests/reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile import BudgetError, Engine
from asynctile.layers import AdamW, Model, Trainer
from asynctile.layers.model import model_state_of
from tests.layers.shapes import Shape
from tests.layers.shapes import shape as make_shape

Tensors = dict[str, NDArray[Any]]
Batches = Sequence[tuple[NDArray[Any], NDArray[Any]]]

#: Ragged in every direction, cut in T, groups of heads uneven; 1250 operations a step.
RAGGED = make_shape(40, 5, 101, 50, tile=22, batch=2, length=41, micro_batches=2, n_inner=61, n_layer=1)
#: The same with a second block: 2100 operations.
TWO_BLOCKS = make_shape(40, 5, 101, 50, tile=22, batch=2, length=41, micro_batches=2, n_inner=61)
#: For tests that are not about values: one block, cut in every direction, 1000 operations a step.
SMALL = make_shape(20, 2, 35, 24, tile=12, batch=2, length=17, micro_batches=2, n_layer=1)
#: The same with a narrow MLP, where its width proves nothing: 600 operations.
NARROW = make_shape(20, 2, 35, 24, tile=12, batch=2, length=17, micro_batches=2, n_inner=25, n_layer=1)
#: The same model, for tests that repeat many steps: one sequence cut in T, or two short ones in two passes; 500 operations.
LONE = replace(NARROW, batch=1, micro_batches=1)
SHORTER = replace(NARROW, length=6)
OPTIMIZER = AdamW(lr=1e-2, warmup=2, decay_steps=9, min_lr=1e-3)
_yardsticks: dict[Shape, Outcome] = {}


@dataclass(frozen=True)
class Outcome:
    """Results that must not depend on where bytes were, and the peak, which must not exceed the cap."""

    losses: list[float]
    norms: list[float]
    weights: Tensors
    moments: Tensors
    device_peak_bytes: int
    uploaded_bytes: int


def batches_of(shape: Shape, count: int, first: int = 1) -> Batches:
    return [shape.batch_of_tokens(seed) for seed in range(first, first + count)]


async def lively(engine: Engine, shape: Shape, seed: int = 1) -> Model:
    """Create a model whose biases are not zero and whose weights are larger than new ones, so that no gradient is near zero.

    Each piece is drawn from a stream of its own tile, so the model depends on the shape and the seed only.
    """
    model = await Model.create(engine, shape.config, seed=seed, tile=shape.tile)
    state = await model.state_dict()
    random = np.random.default_rng(seed)
    for name, value in state.items():
        state[name] = 2 * value + np.float32(0.05) * random.standard_normal(value.shape, np.float32)
    await model_state_of(model).set_weights(lambda parameter, key: state[parameter.name][parameter.index(*key)])
    return model


async def moments_of(trainer: Trainer) -> Tensors:
    found = {}
    state = model_state_of(trainer.model)
    for parameter in state.parameters.trained():
        for family in ("exp_avg", "exp_avg_sq"):
            found[f"{parameter.name}.{family}"] = await state.gather(parameter, getattr(parameter, family))
    return found


async def states_of(trainer: Trainer) -> Tensors:
    """Return weights and moments by name."""
    return await trainer.model.state_dict() | await moments_of(trainer)


async def outcome(
    shape: Shape = RAGGED,
    *,
    steps: int = 3,
    device: str = "emulated",
    make_loop: Callable[[], Any] | None = None,
    engine_options: dict[str, Any] | None = None,
    prepare: Callable[[Engine], None] = lambda _: None,
    update: str = "device",
    **options: Any,
) -> Outcome:
    """Train `steps` steps in an engine of its own.

    update, options: of Trainer. prepare: called with the engine first.
    """
    more = dict(engine_options or {})
    if make_loop is not None:
        more["make_loop"] = make_loop
    async with Engine(device, **more) as engine:
        prepare(engine)
        model = await lively(engine, shape)
        trainer = Trainer(model, OPTIMIZER, micro_batches=shape.micro_batches, update=update, **options)
        return await outcome_of(engine, trainer, shape, steps)


async def outcome_of(engine: Engine, trainer: Trainer, shape: Shape, steps: int) -> Outcome:
    """Train `steps` steps on the batches of a shape."""
    reports = [report async for report in trainer.run(batches_of(shape, steps))]
    statistics = engine.statistics()
    return Outcome(
        [report.loss for report in reports],
        [report.grad_norm for report in reports],
        await trainer.model.state_dict(),
        await moments_of(trainer),
        statistics.device_peak_bytes,
        statistics.uploaded_bytes,
    )


async def yardstick(shape: Shape = RAGGED) -> Outcome:
    """Return the outcome of two steps with everything resident on `cpu`; cached for all tests."""
    if shape not in _yardsticks:
        _yardsticks[shape] = await outcome(shape, steps=2, device="cpu")
    return _yardsticks[shape]


async def floor_of(shape: Shape = RAGGED) -> int:
    """Return the floor that the refusal of a far too small cap names."""
    async with Engine("emulated", device_memory=1) as engine:
        try:
            await Model.create(engine, shape.config, tile=shape.tile)
        except BudgetError as error:
            return error.floor
    raise AssertionError("a cap of one byte was accepted")


def assert_same_tensors(one: Tensors, other: Tensors) -> None:
    """Assert that the tensors are equal bit for bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype, name
        assert value.shape == other[name].shape, name
        assert value.tobytes() == other[name].tobytes(), name


def assert_same_bits(one: Outcome, other: Outcome) -> None:
    assert one.losses == other.losses
    assert one.norms == other.norms
    assert_same_tensors(one.weights, other.weights)
    assert_same_tensors(one.moments, other.moments)


def distance(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the norm of the difference divided by the norm, in float64."""
    wide = expected.astype(np.float64)
    return float(np.linalg.norm(found - wide) / np.linalg.norm(wide))
