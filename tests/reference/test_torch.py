"""The whole way through Engine and Trainer against PyTorch in float32: logits, every gradient, 50 steps, clipping.

The yardstick is tests/reference_gpt2.py. Shapes are ragged in T, d, vocabulary and groups of heads.
tests/layers/test_equal_bits.py tests that bits do not depend on budgets, so one device is enough here; tests/gpu runs the same
tests on other devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

from asynctile import Engine  # noqa: E402
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer  # noqa: E402
from tests.layers.shapes import Shape  # noqa: E402
from tests.layers.shapes import shape as make_shape  # noqa: E402
from tests.layers.training import batches_of, lively  # noqa: E402
from tests.reference.bounds import FP32, OPTIMIZER, STEPS, Bounds, check_gradients, check_trained, distance  # noqa: E402
from tests.reference_gpt2 import ReferenceGPT2  # noqa: E402

pytestmark = pytest.mark.reference

SHAPES = {
    "ragged in T, d and V": make_shape(100, 4, 150, 64, tile=48, batch=2, length=61),
    "a tile smaller than a head": make_shape(64, 2, 90, 40, tile=28, batch=2, length=37),
    "several sequences in a row tile": make_shape(72, 6, 97, 16, tile=40, batch=8, length=13, micro_batches=2),
    "uneven groups of heads, narrow MLP": make_shape(105, 7, 150, 50, tile=32, batch=2, length=50, n_inner=77),
    "the default tile": Shape(
        GPT2Config(n_layer=3, n_head=4, n_embd=128, block_size=80, vocab_size=300), None, 2, 75),  # type: ignore[arg-type]
}
#: A cap that makes all tiles move: about a quarter of the states.
SHARE = 4


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def shape(request: pytest.FixtureRequest) -> Shape:
    return request.param


@dataclass(frozen=True)
class Place:
    """The engine's device and precision, PyTorch's precision, and the bounds between both."""

    device: str = "emulated"
    precision: str = "fp32"
    yardstick: torch.dtype = torch.float32
    bounds: Bounds = FP32

    def engine(self, shape: Shape | None = None) -> Engine:
        """Return an engine with everything on the device, or with too little memory there for `shape`.

        On a GPU the default tile of a model so small is the whole of it, and nothing can leave.
        """
        is_whole = shape is None or (shape.tile is None and self.device != "emulated")
        cap = None if shape is None or is_whole else max(shape.config.states_nbytes // SHARE, 2 << 20)
        return Engine(self.device, device_memory=cap, precision=self.precision)

    async def theirs(self, model: GPT2) -> ReferenceGPT2:
        """Return PyTorch's model with the same weights."""
        return ReferenceGPT2.from_state(model.config, await model.state_dict(), self.yardstick)


@pytest.fixture
def place() -> Place:
    return Place()


async def test_logits_and_every_gradient(shape: Shape, place: Place) -> None:
    tokens, targets = shape.batch_of_tokens()
    async with place.engine(shape) as engine:
        model = await lively(engine, shape)
        theirs = await place.theirs(model)
        assert distance(await model.logits(tokens), theirs.logits(tokens)) < place.bounds.logits
        loss, expected = theirs.gradients(tokens, targets)
        trainer = Trainer(model, micro_batches=shape.micro_batches)
        check_gradients(await trainer.gradients(tokens, targets), expected, place.bounds.gradient)
        assert await model.loss(tokens, targets) == pytest.approx(loss, rel=place.bounds.loss)


async def test_every_tensor_after_50_steps(shape: Shape, place: Place) -> None:
    """The model is new, with zero biases, so the keys' bias must stay near zero."""
    async with place.engine() as engine:
        model = await GPT2.create(engine, shape.config, seed=1, tile=shape.tile)
        theirs = await place.theirs(model)
        adamw = theirs.adamw(OPTIMIZER.lr, OPTIMIZER.betas, OPTIMIZER.eps, OPTIMIZER.weight_decay)
        trainer = Trainer(model, OPTIMIZER, micro_batches=shape.micro_batches)
        for tokens, targets in batches_of(shape, STEPS):
            loss, _ = theirs.gradients(tokens, targets)
            adamw.step()
            report = await trainer.step(tokens, targets)
            assert report.loss == pytest.approx(loss, rel=place.bounds.losses)
        check_trained(await model.state_dict(), theirs.state(), place.bounds.trained, keys_at_zero=place.bounds.keys_at_zero)


async def test_a_schedule_and_clipping_are_pytorchs(place: Place) -> None:
    shape, clip_norm = SHAPES["ragged in T, d and V"], 0.7
    optimizer = replace(OPTIMIZER, warmup=4, decay_steps=12, min_lr=1e-4)
    clipped = 0
    async with place.engine(shape) as engine:
        model = await lively(engine, shape)
        theirs = await place.theirs(model)
        adamw = theirs.adamw(optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay)
        trainer = Trainer(model, optimizer, clip_norm=clip_norm)
        for step, (tokens, targets) in enumerate(batches_of(shape, 20), 1):
            theirs.gradients(tokens, targets)
            norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm).item()
            for group in adamw.param_groups:
                group["lr"] = optimizer.rate(step)
            adamw.step()
            report = await trainer.step(tokens, targets)
            assert report.grad_norm == pytest.approx(norm, rel=1e-5)
            assert report.lr == optimizer.rate(step)
            clipped += norm > clip_norm
        assert clipped > 5, "nothing was clipped"
        check_trained(await model.state_dict(), theirs.state(), place.bounds.trained, steps=20, keys_at_zero=False)


@pytest.mark.parametrize("length", [13, 61], ids=["regrouped rows", "the same rows"])
async def test_two_micro_batches_are_one_to_rounding(length: int, place: Place) -> None:
    shape = make_shape(100, 4, 150, 64, tile=48, batch=4 if length == 61 else 8, length=length)
    tokens, targets = shape.batch_of_tokens()
    found: list[Any] = []
    for micro_batches in (1, 2):
        async with place.engine(shape) as engine:
            trainer = Trainer(await lively(engine, shape), AdamW(lr=1e-3), micro_batches=micro_batches)
            gradients = await trainer.gradients(tokens, targets)
            report = await trainer.step(tokens, targets)
            found.append((report.loss, report.grad_norm, gradients))
    (loss, norm, gradients), (other_loss, other_norm, others) = found
    assert other_loss == pytest.approx(loss, rel=1e-6)
    assert other_norm == pytest.approx(norm, rel=1e-6)
    check_gradients(others, gradients, 1e-6)


async def test_ignored_targets_do_not_count_in_a_longer_mean(place: Place) -> None:
    """Some sequences have no target at all, as padding makes them."""
    shape = SHAPES["several sequences in a row tile"]
    tokens, targets = shape.batch_of_tokens()
    targets[2:5] = -100
    targets[5, 3:] = -100
    async with place.engine(shape) as engine:
        model = await lively(engine, shape)
        theirs = await place.theirs(model)
        loss, expected = theirs.gradients(tokens, targets)
        assert await model.loss(tokens, targets) == pytest.approx(loss, rel=place.bounds.loss)
        trainer = Trainer(model, micro_batches=2)
        check_gradients(await trainer.gradients(tokens, targets), expected, place.bounds.gradient)


async def test_greedy_generation_is_pytorchs(place: Place) -> None:
    shape = SHAPES["a tile smaller than a head"]
    async with place.engine(shape) as engine:
        model = await lively(engine, shape)
        theirs = await place.theirs(model)
        found = [token async for token in model.generate([3, 1, 4], max_new_tokens=50, temperature=0)]
    ids = [3, 1, 4]
    for _ in range(50):
        window: NDArray[Any] = np.array([ids[-shape.config.block_size :]])
        ids.append(int(theirs.logits(window)[0, -1].argmax()))
    assert found == ids[3:]
