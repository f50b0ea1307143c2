"""Recorded programs run by the interpreter: equal bits in every mode; the values of PyTorch where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from asynctile.kernels.cpu import KERNELS
from asynctile.layers.optimizer import AdamW
from asynctile.layers.step import parts_of
from tests.interpreter import Model
from tests.layers.families import FAMILIES, NAMES
from tests.layers.shapes import LIGHT, Shape

Tensors = dict[str, NDArray[Any]]


@pytest.fixture(params=[*LIGHT, *NAMES])
def shape(request: pytest.FixtureRequest) -> Shape:
    return (LIGHT | FAMILIES)[request.param]


def model_of(shape: Shape, **more: Any) -> Model:
    """Make a model with larger weights than a new one and biases that are not zero, so that no gradient is close to zero."""
    model = Model.create(shape.parameters(), seed=1, **more)
    random = np.random.default_rng(5)
    model.load({name: 2 * value + 0.05 * random.standard_normal(value.shape, np.float32)
                for name, value in model.state().items()})
    return model


def assert_same_bits(one: Tensors, other: Tensors) -> None:
    for name, value in one.items():
        assert np.array_equal(value, other[name]), name


def test_bits_are_equal_for_any_number_of_parts_that_keep_their_activations(shape: Shape) -> None:
    tokens, targets = shape.batch_of_tokens()
    model = model_of(shape)
    loss, again = model.gradients(tokens, targets, shape.micro_batches)
    if shape.micro_batches == 1:
        assert loss == model.loss(tokens, targets)
    for kept in range(1, parts_of(shape.config) + 1):
        found = model.gradients(tokens, targets, shape.micro_batches, kept=kept)
        assert found[0] == loss
        assert_same_bits(found[1], again)


@pytest.mark.parametrize("kept", [0, 2])
def test_bits_are_equal_for_any_number_of_passes(shape: Shape, kept: int) -> None:
    """From one pass for all micro-batches to one for each cut sequence, or for each tile of whole sequences."""
    tokens, targets = shape.batch_of_tokens()
    model = model_of(shape)
    loss, expected = model.gradients(tokens, targets, shape.micro_batches, kept=kept)
    rows = shape.parameters().tiling.rows(shape.batch, shape.length, shape.micro_batches)
    for passes in range(1, rows.most_passes + 1):
        found = model.gradients(tokens, targets, shape.micro_batches, kept=kept, passes=passes)
        assert found[0] == loss
        assert_same_bits(found[1], expected)


def test_fused_and_two_phase_are_equal_bit_for_bit(shape: Shape) -> None:
    fused, clipped = model_of(shape), model_of(shape)
    for step in (1, 2):
        tokens, targets = shape.batch_of_tokens(step)
        one = fused.step(tokens, targets, step, micro_batches=shape.micro_batches)
        other = clipped.step(
            tokens, targets, step, kind="step_clipped", micro_batches=shape.micro_batches, kept=step)
        assert one == other
    for family in ("weights", "exp_avg", "exp_avg_sq"):
        assert_same_bits(fused.state(family), clipped.state(family))


def test_the_norm_is_that_of_the_gradients(shape: Shape) -> None:
    tokens, targets = shape.batch_of_tokens()
    model = model_of(shape)
    loss, gradients = model.gradients(tokens, targets, shape.micro_batches)
    expected = sum(np.square(value, dtype=np.float64).sum() for value in gradients.values()) ** 0.5
    again, norm = model.step(tokens, targets, micro_batches=shape.micro_batches)
    assert again == loss
    assert norm == pytest.approx(expected, rel=1e-12)


def test_micro_batches_change_rounding_only() -> None:
    shape = LIGHT["several sequences in a tile"]
    tokens, targets = shape.batch_of_tokens()
    model = model_of(shape)
    one, other = (model.gradients(tokens, targets, count)[1] for count in (1, 3))
    for name, value in one.items():
        if not name.endswith("c_attn.bias"):
            assert distance(value, other[name]) < 1e-6, name


def distance(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the norm of the difference, divided by the norm."""
    wide = expected.astype(np.float64)
    return float(np.linalg.norm(found - wide) / np.linalg.norm(wide))


def determined(name: str, value: NDArray[Any], length: int) -> NDArray[Any]:
    """Return the tensor without the columns of c_attn whose true gradient is zero, where both sides hold rounding noise.

    Softmax does not see a shift of all scores of a row: this affects the bias of the keys. A lone token attends to itself
    whatever its query and key are: this affects all of both.
    """
    if "c_attn" not in name:
        return value
    q, _, v = np.split(value, 3, axis=-1)
    if length == 1:
        return v
    return np.concatenate([q, v]) if name.endswith("bias") else value


@pytest.mark.parametrize("name", ["sequences cut, all ragged", "several sequences in a tile", "tiles of one"])
def test_the_cpu_kernels_agree_with_plain_numpy(name: str) -> None:
    shape = LIGHT[name]
    tokens, targets = shape.batch_of_tokens()
    plain, compiled = model_of(shape), model_of(shape, kernels=KERNELS)
    (loss, one), (other_loss, other) = (
        model.gradients(tokens, targets, shape.micro_batches) for model in (plain, compiled))
    assert other_loss == pytest.approx(loss, rel=2e-6)
    for tensor in one:
        found, wanted = (determined(tensor, side[tensor], shape.length) for side in (other, one))
        assert distance(found, wanted) < 5e-6, tensor
    kept = compiled.gradients(tokens, targets, shape.micro_batches, kept=parts_of(shape.config))[1]
    assert_same_bits(other, kept)
    fused = compiled.step(tokens, targets, micro_batches=shape.micro_batches)
    again = model_of(shape, kernels=KERNELS)
    assert fused == again.step(tokens, targets, kind="step_clipped", micro_batches=shape.micro_batches)
    assert_same_bits(compiled.state(), again.state())


@pytest.mark.reference
@pytest.mark.parametrize("shape", LIGHT, indirect=True)
def test_logits_and_gradients_are_pytorchs(shape: Shape) -> None:
    """Compare GPT-2 with its twin in PyTorch; tests/reference/test_families.py compares the other families."""
    torch = pytest.importorskip("torch")
    from tests.reference_gpt2 import ReferenceGPT2

    tokens, targets = shape.batch_of_tokens()
    model = model_of(shape)
    loss, gradients = model.gradients(tokens, targets, shape.micro_batches)
    logits = model.logits(tokens)
    for dtype in (torch.float64, torch.float32):
        reference = ReferenceGPT2.from_state(shape.config, model.state(), dtype)
        expected_loss, expected = reference.gradients(tokens, targets)
        assert distance(logits, reference.logits(tokens)) < 1e-5
        assert loss == pytest.approx(expected_loss, rel=2e-6)
        assert gradients.keys() == expected.keys()
        for name, value in gradients.items():
            value, wanted = (determined(name, tensor, shape.length) for tensor in (value, expected[name]))
            assert distance(value, wanted) < 5e-6, name


@pytest.mark.reference
def test_weights_after_some_steps_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    from tests.reference_gpt2 import ReferenceGPT2

    shape = LIGHT["sequences cut, all ragged"]
    optimizer = AdamW(lr=1e-3, weight_decay=0.1)
    model = model_of(shape)
    reference = ReferenceGPT2.from_state(shape.config, model.state(), torch.float64)
    theirs = reference.adamw(optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay)
    for step in range(1, 6):
        tokens, targets = shape.batch_of_tokens(step)
        loss, _ = model.step(tokens, targets, step, optimizer, micro_batches=2)
        expected_loss, _ = reference.gradients(tokens, targets)
        theirs.step()
        assert loss == pytest.approx(expected_loss, rel=1e-5)
    for name, value in reference.state().items():
        found, wanted = (determined(name, tensor, shape.length) for tensor in (model.state()[name], value))
        assert distance(found, wanted) < 5e-5, name
