"""A trial of cuDNN's attention before its first use: small tiles, each run twice and compared with float64.

It checks that the results are right, and that both runs give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from asynctile.device.cudnn import WORKSPACE_NBYTES, Cudnn, load
from asynctile.device.driver import Driver
from asynctile.device.probe import fetch, place, wide
from asynctile.errors import DeviceError
from asynctile.kernels.bf16 import to_bf16
from asynctile.program.precision import BF16, FP32

#: Sequences of a tile, tokens of each, heads, columns of a head. The cases cover whole and partial tiles of cuDNN's kernels,
#: and several tiles in a sequence.
CASES = ((1, 320, 2, 64), (3, 200, 3, 128), (2, 75, 3, 40), (1, 256, 2, 64))
#: Tolerances relative to the largest expected magnitude: bf16 results and bf16 weights are rounded, and float32 sums too.
TOLERANCE = {BF16: 2e-2, FP32: 1e-3}


def try_cudnn(
    memory: Driver, stream: int, load: Callable[[], Any] = load, nbytes: int = WORKSPACE_NBYTES
) -> tuple[Cudnn | None, str]:
    """Return cuDNN for `stream`, or None if it is not used, and a description of what attention uses.

    cuDNN gets a workspace of `nbytes` from `memory`.
    """
    try:
        library = load()
    except DeviceError as error:
        return None, f"not used: {error}"
    workspace = memory.malloc(nbytes)
    try:
        cudnn = Cudnn(library, stream, workspace, nbytes)
    except Exception as error:  # after any error the library is not used
        memory.free(workspace)
        return None, f"not used: {type(error).__name__}: {error}"
    wrong = wrong_attention(cudnn, memory, stream)
    if wrong is None:
        return cudnn, cudnn.words
    cudnn.close()
    memory.free(workspace)
    return None, f"not used: cuDNN {cudnn.version} gives {wrong}" + cudnn.words.removeprefix(f"cuDNN {cudnn.version}")


def wrong_attention(cudnn: Any, memory: Driver, stream: int) -> str | None:
    """Describe the first wrong result of cudnn's `attend` and `attend_backward`; None if all are right and repeat bit for bit.

    A case that cuDNN does not support is skipped; if it supports none, the answer is "nothing".
    """
    used = False
    for seqs, tokens, heads, hs in CASES:
        normal = np.random.default_rng(7).standard_normal((4, seqs * tokens, heads * hs), np.float32)
        q, k, v, dout = (to_bf16(x) for x in normal)
        (out, lse), gradients = _expected(q, k, v, dout, seqs, heads)
        stats = np.concatenate([lse, lse]).astype(np.float32)
        for run, given, wanted in (
            (cudnn.attend, [q, k, v], [out, lse]),
            (cudnn.attend_backward, [q, k, v, to_bf16(out.astype(np.float32)), dout, stats], gradients),
        ):
            what = f"{run.__name__}, {seqs} x {tokens} tokens, {heads} heads of {hs}"
            try:
                results = [_run(run, memory, stream, given, wanted, seqs, heads) for _ in range(2)]
            except Exception as error:  # after any error the library is not used
                return f"{type(error).__name__}: {error} ({what})"
            if results[0] is None:
                continue
            used = True
            if results[1] is None or not _near(results[0], wanted):
                return f"wrong results ({what})"
            if any(one.tobytes() != other.tobytes() for one, other in zip(*results, strict=True)):
                return f"results that differ from run to run ({what})"
    return None if used else "nothing"


def _run(
    run: Callable[..., bool], memory: Driver, stream: int, given: list[Any], wanted: list[np.ndarray], seqs: int,
    heads: int,
) -> list[np.ndarray] | None:
    """Run once into poisoned outputs and return them, or None if cuDNN did not run.

    Statistics (g, R) stand in the first g rows of their tile (2 g, R).
    """
    results = []
    for expected in wanted:
        is_tile = expected.shape == given[0].shape
        shape = expected.shape if is_tile else (2 * heads, expected.shape[1])
        results.append(np.full(shape, 0xFFFF, BF16) if is_tile else np.full(shape, np.nan, FP32))
    with ExitStack() as stack:
        arrays = [place(value, memory, stream, stack) for value in (*given, *results)]
        done = run(*arrays, seqs, heads)
        for result, array in zip(results, arrays[len(given) :], strict=True):
            fetch(result, array, memory, stream)
    return [result[: len(expected)] for result, expected in zip(results, wanted, strict=True)] if done else None


def _near(results: list[np.ndarray], wanted: list[np.ndarray]) -> bool:
    """Return whether all results are within TOLERANCE of the largest expected magnitude of their dtype. NaN is not."""
    for dtype, tolerance in TOLERANCE.items():
        pairs = [pair for pair in zip(results, wanted, strict=True) if pair[0].dtype == dtype]
        largest = max((np.max(np.abs(expected)) for _, expected in pairs), default=0.0)
        if not all(np.max(np.abs(wide(result) - expected)) <= tolerance * largest for result, expected in pairs):
            return False
    return True


def _expected(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, dout: np.ndarray, seqs: int, heads: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return [out, log-sum-exp (g, R)] and [dq, dk, dv], in float64."""
    rows, columns = q.shape
    tokens, hs = rows // seqs, columns // heads
    scale, future = 1 / np.sqrt(hs), np.triu(np.ones((tokens, tokens), bool), 1)
    q, k, v, dout = (wide(x) for x in (q, k, v, dout))
    out, dq, dk, dv = (np.empty((rows, columns)) for _ in range(4))
    lse = np.empty((heads, rows))
    for head in range(heads):
        for start in range(0, rows, tokens):
            here = slice(start, start + tokens), slice(head * hs, (head + 1) * hs)
            scores = np.where(future, -np.inf, q[here] @ k[here].T * scale)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            total = weights.sum(1, keepdims=True)
            lse[head, here[0]] = scores.max(1) + np.log(total[:, 0])
            weights /= total
            out[here] = weights @ v[here]
            slope = weights * (dout[here] @ v[here].T - np.sum(out[here] * dout[here], 1, keepdims=True)) * scale
            dq[here], dk[here], dv[here] = slope @ k[here], slope.T @ q[here], weights.T @ dout[here]
    return [out, lse], [dq, dk, dv]
