"""The bounds against PyTorch and transformers, by precision, with their one exception. Prints the worst distance it saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers import AdamW
from tests.layers.training import distance

__all__ = [
    "BF16", "FP32", "GRADIENT", "LOGITS", "OPTIMIZER", "STEPS", "TF32", "TRAINED", "Bounds", "check_gradients", "check_trained",
    "distance",
]  # fmt: skip

STEPS = 50
OPTIMIZER = AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Bounds:
    """Bounds of logits, of a gradient, of a tensor after STEPS steps, of losses at once, and of losses in training.

    keys_at_zero: whether the tensor that is pure rounding error in exact arithmetic (`_parts`) is small compared with the rest.
    """

    logits: float
    gradient: float
    trained: float
    loss: float
    losses: float
    keys_at_zero: bool = True


FP32 = Bounds(1e-5, 5e-6, 5e-5, 2e-6, 1e-4)
#: Twice the distance of PyTorch from its own float64 on the shapes of test_torch.py: with only matrix products rounded to TF32,
#: and under autocast to bf16.
TF32 = Bounds(2e-3, 4e-3, 1.5e-2, 1e-4, 1e-4, keys_at_zero=False)
BF16 = Bounds(2e-2, 4e-2, 8e-2, 1e-3, 5e-4, keys_at_zero=False)
LOGITS, GRADIENT, TRAINED = FP32.logits, FP32.gradient, FP32.trained


def _parts(name: str, value: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the determined part of a tensor, and the key third of c_attn.bias if it is that tensor.

    Softmax does not see a shift of all scores of a row, so the true gradient of the keys' bias is zero. Both sides hold
    rounding noise there, which AdamW brings to full size (PyTorch differs from itself by 5e-4).
    """
    if not name.endswith("c_attn.bias"):
        return value, None
    q, k, v = np.split(value, 3)
    return np.concatenate([q, v]), k


def check_gradients(found: Tensors, expected: Tensors, bound: float) -> None:
    assert found.keys() == expected.keys()
    worst = ("", 0.0)
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        mine, keys = _parts(name, found[name])
        theirs, _ = _parts(name, value)
        worst = max(worst, (name, distance(mine, theirs)), key=lambda pair: pair[1])
        if keys is not None:
            assert np.linalg.norm(keys) < max(1e-5, 2 * bound) * np.linalg.norm(mine), name
    print(f"worst gradient: {worst[1]:.2e} at {worst[0]}, bound {bound:.0e}")
    assert worst[1] < bound, worst


def check_trained(found: Tensors, expected: Tensors, bound: float, *, steps: int = STEPS, keys_at_zero: bool = True) -> None:
    """Check tensors after training.

    keys_at_zero: the model began with zero biases, so the key third of c_attn.bias must have stayed near zero.
    """
    assert found.keys() == expected.keys()
    worst = ("", 0.0)
    for name, value in expected.items():
        mine, keys = _parts(name, found[name])
        theirs, _ = _parts(name, value)
        worst = max(worst, (name, distance(mine, theirs)), key=lambda pair: pair[1])
        if keys is not None and keys_at_zero:
            share = float(np.linalg.norm(keys)) / (0.01 * OPTIMIZER.lr * steps * keys.size**0.5)
            print(f"{name}, keys: {share:.3f} of its limit")
            assert share < 1, name
    print(f"worst tensor after {steps} steps: {worst[1]:.2e} at {worst[0]}, bound {bound:.0e}")
    assert worst[1] < bound, worst
