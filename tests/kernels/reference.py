"""The result of every kernel on whole matrices, in float64 by the verbs of tests/verbs.py; no tiles, no blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests import verbs

Array = Any


def random(seed: int, *shape: int, scale: float = 1.0) -> Array:
    """Return new normal random numbers in float32."""
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def poison(*shape: int) -> Array:
    """Return an output that must be overwritten without being read."""
    return np.full(shape, np.nan, np.float32)


def error(found: Array, expected: Array) -> float:
    """Return the largest difference, in units of the largest expected magnitude; infinite if anything is NaN."""
    assert found.shape == expected.shape
    largest = max(float(np.max(np.abs(expected))), 1e-30)
    worst = float(np.max(np.abs(found.astype(np.float64) - expected))) / largest
    return worst if worst == worst else float("inf")


def gelu(x: Array) -> Array:
    y = np.empty(x.shape)
    verbs.gelu(x.astype(np.float64), y)
    return y


def gelu_slope(x: Array) -> Array:
    slope = np.ones(x.shape)
    verbs.gelu_and_backward(x, np.empty(x.shape), slope, np.empty(x.shape[1]), False)
    return slope


def rstd(x: Array, eps: float) -> Array:
    """Return the reciprocal of the standard deviation of each row."""
    stats = np.empty((len(x), 2))
    verbs.layernorm_stats(x, stats, 0, True, eps)
    return stats[:, 1]


def layernorm(x: Array, gain: Array, bias: Array, eps: float) -> Array:
    stats, y = np.empty((len(x), 2)), np.empty(x.shape)
    verbs.layernorm_whole(x, gain, bias, stats, y, eps)
    return y


def layernorm_gradients(dinp: Array, x: Array, gain: Array, eps: float) -> tuple[Array, Array, Array]:
    """Return dx, dgain and dbias."""
    stats, gradients = np.empty((len(x), 2)), (np.empty(x.shape), np.empty(x.shape[1]), np.empty(x.shape[1]))
    verbs.layernorm_stats(x, stats, 0, True, eps)
    verbs.layernorm_whole_backward(dinp, x, stats, gain, *gradients, False, False)
    return gradients


def attention(q: Array, k: Array, v: Array, seqs: int, heads: int) -> tuple[Array, Array]:
    """Return out (seqs T, heads hs) and log-sum-exp (heads, seqs T)."""
    out, stats = np.empty(q.shape), np.empty((2 * heads, len(q)))
    verbs.attention(q, k, v, out, stats, seqs, heads, True, True)
    return out, stats[:heads]


def attention_gradients(q: Array, k: Array, v: Array, dout: Array, seqs: int, heads: int) -> tuple[Array, Array, Array]:
    """Return dq, dk and dv."""
    out, lse = attention(q, k, v, seqs, heads)
    gradients = np.empty(q.shape), np.empty(k.shape), np.empty(v.shape)
    verbs.attention_backward_whole(q, k, v, out, dout, lse, np.empty((heads, len(q))), *gradients, seqs, heads)
    return gradients


def cross_entropy(logits: Array, targets: Array) -> tuple[float, Array, Array]:
    """Return the sum of losses, the gradient of that sum, and the log-sum-exp."""
    gradient, stats, loss = logits.astype(np.float64), np.empty((len(logits), 3)), np.empty(1)
    verbs.cross_entropy(gradient, targets, stats, 0, 0, True, True, loss)
    verbs.cross_entropy_backward(targets, stats, np.ones(1), gradient, 0, 0)
    return float(loss[0]), gradient, stats[:, 0]
