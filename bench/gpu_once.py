"""One small call of every kernel, with its arguments and expected results, for gpu_smoke.py and gpu_race.py.

The arguments are those of tests/kernels/calls.py. tests/verbs.py computes the expected results in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.bf16 import from_bf16
from asynctile.kernels.cuda import KERNELS
from asynctile.program.precision import BF16
from tests.kernels import calls
from tests.verbs import VERBS

#: By kernel, an operand and those of its rows that are workspace, in which a library may leave anything.
ROOM = {"attention": (4, slice(calls.ATTENTION[2], None)), "attention_backward_whole": (6, slice(None))}
#: Tolerances relative to the largest expected magnitude: if any operand is bf16, and if none is.
TOLERANCE = {True: 3e-2, False: 2e-3}


def every_call(dtype: str) -> dict[str, calls.Call]:
    """Return all calls by kernel, AdamW first, because its bits must equal the CPU's."""
    found = calls.every_call(dtype)
    assert found.keys() == KERNELS.keys()
    return dict(sorted(found.items(), key=lambda item: (not item[0].startswith("adamw"), item[0])))


def run_once(machine: Any, verb: str, call: calls.Call) -> str | None:
    """Run a call on a machine of tests/gpu or tests/cuda. Return what is wrong with its results, in words, or None."""
    arrays, params, reports = call
    found, expected = ([array.copy() for array in arrays] for _ in range(2))
    numbers = [np.full(1, np.nan) for _ in range(2)] if reports else []
    with np.errstate(all="ignore"):
        VERBS[verb](*expected, *params, *numbers[:1])
    if verb in ROOM:
        operand, rows = ROOM[verb]
        expected[operand][rows] = np.nan
    machine.run(verb, found, params, numbers[1] if reports else None)
    is_narrow = any(array.dtype == BF16 for array in arrays)
    pairs = [*zip(found, expected, strict=True), *([(numbers[1], numbers[0])] if reports else [])]
    wrong = [index for index, (one, other) in enumerate(pairs) if not _near(one, other, TOLERANCE[is_narrow])]
    return f"operands {wrong} are wrong" if wrong else None


def _near(found: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    """Compare where a number was expected; operands that a kernel leaves alone may contain anything."""
    one, other = (np.asarray(from_bf16(x) if x.dtype == BF16 else x, np.float64) for x in (found, expected))
    known = np.isfinite(other)
    largest = max(float(np.max(np.abs(other[known]), initial=0.0)), 1e-30)
    return bool(np.all(np.abs(one[known] - other[known]) <= tolerance * largest))  # False for a NaN
