"""C = A op(B) for the tokens of generation, each row with the bits that it has alone; the product of training is `gemm`."""

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
    """c (R, C) = the first R rows of a (at least R, K) times op(b) (K, C), plus c if `accumulate` or plus source (R, C), plus
    bias (C,).

    a and b are T, c and source U; what c held does not count where there is a source. tb: use the transpose of b.
    Law: the bits of a row of c are a function of that row of a, of b and bias, and of that row of what is added to; neither of
    R, nor of the row's index, nor of what stands in other rows. A sum over K has one order; it begins at zero, and joins the
    sum of bias and c, or of bias and source, at its end.
    Kernel: gemm_rows(a, b, c, tb, accumulate), gemm_rows_bias(a, b, bias, c, tb, accumulate),
    gemm_rows_onto(a, b, source, c, tb) or gemm_rows_bias_onto(a, b, bias, source, c, tb).
    Raises ValueError for a source if it is also to `accumulate`.
    """
    (rows, columns), inner = c.shape, a.shape[1]
    if a.shape[0] < rows:
        raise ValueError(f"gemm_rows: {a.name} has {a.shape[0]} rows, expected at least the {rows} of {c.name}")
    expect("gemm_rows", b, (columns, inner) if tb else (inner, columns))
    flops = 2 * rows * columns * inner
    return product("gemm_rows", (a, b), c, (tb,), flops, accumulate=accumulate, bias=bias, source=source)
