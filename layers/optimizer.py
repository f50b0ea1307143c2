"""The settings of AdamW and its learning rate by step.

asynctile/ops/adamw.py defines the arithmetic, trainer.py applies it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.config import LARGEST, check_count
from asynctile.layers.guesses import answering
from asynctile.storage.input import shown

COSINE, LINEAR = DECAYS = "cosine", "linear"


@answering
@dataclass(frozen=True)
class AdamW:
    """The settings of AdamW with decoupled weight decay, linear warm-up, and cosine or linear decay of the learning rate.

    Biases and layer norms are not decayed. ValueError or TypeError for a setting out of range.
    """

    lr: float = 3e-4
    """The highest learning rate, per step."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the two moments, per step."""
    eps: float = 1e-8
    """Added to the root of the second moment, without unit."""
    weight_decay: float = 0.1
    """Share of a weight that is taken off, per step and unit of learning rate."""
    warmup: int = 0
    """Length of the linear warm-up, in steps."""
    decay_steps: int | None = None
    """The step at which the rate reaches min_lr, counted from the first step; None: constant after the warm-up."""
    min_lr: float = 0.0
    """The learning rate after decay_steps, per step."""
    decay: str = "cosine"
    """How the rate falls from the end of the warm-up to decay_steps: "cosine" or "linear"."""

    def __post_init__(self) -> None:
        if not isinstance(self.betas, Collection):
            raise TypeError(f"betas is {shown(self.betas)}, expected two numbers, such as (0.9, 0.95)")
        # Checkpoints and configuration files contain lists.
        object.__setattr__(self, "betas", tuple(self.betas))
        for name in ("lr", "eps"):
            _check_number(name, getattr(self, name), above=True)
        for name in ("weight_decay", "min_lr"):
            _check_number(name, getattr(self, name), above=False)
        if len(self.betas) != 2:
            raise ValueError(f"betas is {shown(self.betas)}, expected two numbers, such as (0.9, 0.95)")
        for beta in self.betas:
            if not _is_number(beta) or not 0 <= beta < 1:
                raise ValueError(f"betas is {shown(self.betas)}, expected two numbers of at least 0 and below 1")
        check_count("warmup", self.warmup, 0)
        if self.decay_steps is not None:
            check_count("decay_steps", self.decay_steps)
            if self.decay_steps < self.warmup:
                raise ValueError(f"decay_steps {self.decay_steps} ends before warmup {self.warmup}; "
                                 "both count from the first step, choose decay_steps of at least warmup")
        if not isinstance(self.decay, str) or self.decay not in DECAYS:
            raise ValueError(f"decay is {shown(self.decay)}, expected {' or '.join(map(repr, DECAYS))}; leave out decay_steps "
                             "for a constant rate")
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr {self.min_lr} is above lr {self.lr}; choose at most lr")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step. The first step is 1."""
        if step <= self.warmup:
            return self.lr * step / self.warmup
        if self.decay_steps is None:
            return self.lr
        if step >= self.decay_steps:
            return self.min_lr
        done = (step - self.warmup) / (self.decay_steps - self.warmup)
        left = 1.0 - done if self.decay == LINEAR else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.min_lr + (self.lr - self.min_lr) * left

    def hyper(self, step: int, factor: float = 1.0) -> NDArray[np.float32]:
        """Return the `hyper` tile of a step, (9,) float32, as in asynctile/ops/adamw.py. factor: scales the gradient."""
        beta1, beta2 = self.betas
        lr = self.rate(step)
        keep = 1.0 - lr * self.weight_decay
        stride = lr / (1.0 - beta1**step)
        root = math.sqrt(1.0 - beta2**step)
        return np.array([factor, beta1, 1.0 - beta1, beta2, 1.0 - beta2, keep, stride, root, self.eps], np.float32)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _check_number(name: str, value: object, *, above: bool) -> None:
    if not _is_number(value) or value < 0 or (above and value == 0):  # type: ignore[operator]
        raise ValueError(f"{name} is {shown(value)}, expected a number {'above' if above else 'of at least'} 0")
