"""The result of every kernel in plain float64 NumPy on whole matrices; no tiles, no blocks. For all devices."""

from __future__ import annotations

from typing import Any

import numpy as np

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
    x = x.astype(np.float64)
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_slope(x: Array) -> Array:
    x = x.astype(np.float64)
    root = np.sqrt(2 / np.pi)
    tanh = np.tanh(root * (x + 0.044715 * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * root * (1 + 3 * 0.044715 * x**2)


def layernorm(x: Array, gain: Array, bias: Array, eps: float) -> Array:
    xhat, _ = normalised(x, eps)
    return xhat * gain + bias


def normalised(x: Array, eps: float) -> tuple[Array, Array]:
    """Return xhat and rstd."""
    x = x.astype(np.float64)
    mean = x.mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(axis=1, keepdims=True) + eps)
    return (x - mean) * rstd, rstd


def layernorm_gradients(dinp: Array, x: Array, gain: Array, eps: float) -> tuple[Array, Array, Array]:
    """Return dx, dgain and dbias."""
    dinp = dinp.astype(np.float64)
    xhat, rstd = normalised(x, eps)
    d = dinp * gain
    dx = rstd * (d - d.mean(axis=1, keepdims=True) - xhat * (d * xhat).mean(axis=1, keepdims=True))
    return dx, (dinp * xhat).sum(axis=0), dinp.sum(axis=0)


def softmax(scores: Array) -> tuple[Array, Array]:
    """Return the weights and the log-sum-exp of each row."""
    top = scores.max(axis=-1, keepdims=True)
    total = np.exp(scores - top).sum(axis=-1, keepdims=True)
    return np.exp(scores - top) / total, (top + np.log(total))[..., 0]


def _heads(x: Array, seqs: int, heads: int) -> Array:
    """Reshape (seqs T, heads hs) to (seqs, heads, T, hs)."""
    return x.astype(np.float64).reshape(seqs, x.shape[0] // seqs, heads, -1).transpose(0, 2, 1, 3)


def _flat(x: Array) -> Array:
    seqs, heads, rows, hs = x.shape
    return x.transpose(0, 2, 1, 3).reshape(seqs * rows, heads * hs)


def _weights(q: Array, k: Array) -> tuple[Array, Array]:
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    scores[:, :, ~np.tri(scores.shape[-1], dtype=bool)] = -np.inf
    return softmax(scores)


def attention(q: Array, k: Array, v: Array, seqs: int, heads: int) -> tuple[Array, Array]:
    """Return out (seqs T, heads hs) and log-sum-exp (heads, seqs T)."""
    q, k, v = (_heads(x, seqs, heads) for x in (q, k, v))
    weights, lse = _weights(q, k)
    return _flat(weights @ v), lse.transpose(1, 0, 2).reshape(heads, -1)


def attention_gradients(q: Array, k: Array, v: Array, dout: Array, seqs: int, heads: int) -> tuple[Array, Array, Array]:
    """Return dq, dk and dv."""
    q, k, v, dout = (_heads(x, seqs, heads) for x in (q, k, v, dout))
    weights, _ = _weights(q, k)
    dweights = dout @ v.transpose(0, 1, 3, 2)
    dscores = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True)) / np.sqrt(q.shape[-1])
    gradients = dscores @ k, dscores.transpose(0, 1, 3, 2) @ q, weights.transpose(0, 1, 3, 2) @ dout
    return tuple(_flat(x) for x in gradients)  # type: ignore[return-value]


def cross_entropy(logits: Array, targets: Array, ignored: int) -> tuple[float, Array, Array]:
    """Return the sum of losses, the gradient of that sum, and the log-sum-exp."""
    weights, lse = softmax(logits.astype(np.float64))
    counted = targets != ignored
    rows, columns = np.flatnonzero(counted), targets[counted]
    weights[~counted] = 0
    weights[rows, columns] -= 1
    return float((lse[rows] - logits.astype(np.float64)[rows, columns]).sum()), weights, lse


def adamw(w: Array, g: Array, m: Array, v: Array, hyper: Array, decay: bool) -> tuple[Array, Array, Array]:
    """Return w, m and v by float32 NumPy in the order of the contract, for comparison bit for bit."""
    factor, beta1, rest1, beta2, rest2, keep, step, root, eps = hyper
    g = g * factor
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * (g * g)
    w = w * keep if decay else w
    return w - step * (m / (np.sqrt(v) / root + eps)), m, v
