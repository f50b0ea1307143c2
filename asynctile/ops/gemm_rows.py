"""Matrix products C = A op(B) for generation: each row has the bits that it would have alone. Training uses gemm.py."""

from __future__ import annotations

from asynctile.ops.gemm import product
from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile


def gemm_rows(
    a: Tile,
    b: Tile,
    c: Tile,
    *,
    tb: bool = False,
    accumulate: bool = False,
    bias: Tile | None = None,
    source: Tile | None = None,
) -> Operation:
    """Compute c (R, C) = a (R, K) op(b) (K, C), plus c if `accumulate` or plus source (R, C), plus bias (C,).

    a may have more than R rows; only the first R count. a and b are T, c and source are U. With a source, the old values of c
    do not count. tb: use the transpose of b. Raises ValueError for a source together with `accumulate`.
    Law: the bits of a row of c depend only on that row of a, on b and bias, and on that row of the matrix that the product is
    added to. They do not depend on R, on the row's index or on other rows. A sum over K has one order: it begins at zero, and
    the sum of bias and c, or of bias and source, is added at its end.
    Kernel: gemm_rows(a, b, c, tb, accumulate), gemm_rows_bias(a, b, bias, c, tb, accumulate), gemm_rows_onto(a, b, source, c,
    tb) or gemm_rows_bias_onto(a, b, bias, source, c, tb).
    """
    (rows, columns), inner = c.shape, a.shape[1]
    if a.shape[0] < rows:
        raise ValueError(f"gemm_rows: {a.name} has {a.shape[0]} rows, expected at least the {rows} of {c.name}")
    expect("gemm_rows", b, (columns, inner) if tb else (inner, columns))
    flops = 2 * rows * columns * inner
    return product("gemm_rows", (a, b), c, (tb,), flops, accumulate=accumulate, bias=bias, source=source)
