"""Calls of the verbs that generation shares with training, on many rows and on the same rows one by one. For all devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.kernels.reference import random

Array = Any
#: A function (verb, arrays, params) that runs a verb on arrays, which it may change.
Run = Callable[[str, Sequence[Array], Sequence[Any]], None]
#: A function that turns float32 values into those of a tile, which may be bf16.
Typed = Callable[[Array], Array]

ROWS = 65
#: Columns of a row: odd counts, one, more than a vector holds, and a whole number of vectors.
WIDTHS = (1, 3, 17, 33, 64, 75, 130, 259)
VERBS = (
    "copy", "embed_tokens", "fill", "gelu", "layernorm", "layernorm_stats", "layernorm_stats_more", "layernorm_whole",
    "rmsnorm", "rmsnorm_heads", "rmsnorm_stats", "rmsnorm_stats_more", "rmsnorm_whole", "rope_rows", "scale", "swiglu",
)  # fmt: skip


def call(verb: str, columns: int, typed: Typed) -> tuple[str, list[Array], set[int], tuple[Any, ...]]:
    """Return (kernel, arrays, indices of the arrays that have a row for each row, params)."""
    x, other = random(1, ROWS, columns), random(2, ROWS, columns)
    gain, bias, pair = random(3, columns), random(4, columns), np.abs(random(5, ROWS, 2))
    one, heads, positions = pair[:, :1].copy(), typed(random(8, ROWS, 6 * columns)), np.arange(-1, ROWS - 1, dtype=np.int32)
    tokens = np.random.default_rng(6).integers(0, 50, ROWS).astype(np.int32)
    narrow = typed(other)
    return {
        "copy": ("copy", [x, narrow], {0, 1}, ()),
        "embed_tokens": ("embed_tokens", [tokens, typed(random(7, 40, columns)), x], {0, 2}, (3,)),
        "fill": ("fill", [narrow], {0}, (0.1,)),
        "gelu": ("gelu", [typed(4 * x), narrow], {0, 1}, ()),
        "layernorm": ("layernorm", [x, pair, gain, bias, narrow], {0, 1, 4}, ()),
        "layernorm_stats": ("layernorm_stats", [x, pair], {0, 1}, (0, True, 1e-5)),
        "layernorm_stats_more": ("layernorm_stats", [x, pair], {0, 1}, (70, False, 1e-5)),
        "layernorm_whole": ("layernorm_whole", [x, gain, bias, pair, narrow], {0, 3, 4}, (1e-5,)),
        "rmsnorm": ("rmsnorm", [x, one, gain, narrow], {0, 1, 3}, ()),
        "rmsnorm_heads": ("rmsnorm_heads", [heads, gain, typed(random(9, ROWS, 6 * columns))], {0, 2}, (6, 1e-5)),
        "rmsnorm_stats": ("rmsnorm_stats", [x, one], {0, 1}, (0, True, columns, 1e-5)),
        "rmsnorm_stats_more": ("rmsnorm_stats", [x, one], {0, 1}, (70, False, 70 + columns, 1e-5)),
        "rmsnorm_whole": ("rmsnorm_whole", [x, gain, one, narrow], {0, 2, 3}, (1e-5,)),
        "rope_rows": ("rope_rows", [positions, heads], {0, 1}, (3, False, 10000.0, 0.0, 0.0, 0.0, 0.0)),
        "scale": ("scale", [narrow], {0}, (0.3,)),
        "swiglu": ("swiglu", [typed(4 * x), typed(random(8, ROWS, columns)), narrow], {0, 1, 2}, ()),
    }[verb]


def assert_rows_are_independent(run: Run, verb: str, columns: int, typed: Typed, heights: Sequence[int]) -> None:
    """Assert that each row has the bits that it has alone, wherever it lies among so many."""
    kernel, arrays, of_rows, params = call(verb, columns, typed)

    def outcome(start: int, height: int) -> list[bytes]:
        """Return the bytes that a call on these rows alone leaves in each row."""
        parts = [x[start : start + height].copy() if i in of_rows else x for i, x in enumerate(arrays)]
        run(kernel, parts, params)
        return [b"".join(row.tobytes() for row in rows) for rows in zip(*(parts[i] for i in sorted(of_rows)), strict=True)]

    alone = [outcome(row, 1)[0] for row in range(ROWS)]
    for height in heights:
        for start in {0, (ROWS - height) // 2, ROWS - height}:
            assert outcome(start, height) == alone[start : start + height], (verb, columns, start, height)
