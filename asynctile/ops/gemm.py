"""C = op(A) op(B) + beta C, with an optional bias row."""

from __future__ import annotations

from asynctile.handle import Handle
from asynctile.operation import Operation, expect


def gemm(
    a: Handle,
    b: Handle,
    c: Handle,
    *,
    ta: bool = False,
    tb: bool = False,
    accumulate: bool = False,
    bias: Handle | None = None,
) -> Operation:
    """c (R, C) = op(a) (R, K) op(b) (K, C), plus c if `accumulate`, plus bias (C,); a and b are T, c is U.

    ta, tb: use the transpose of a or b. Kernel: gemm(a, b, c, ta, tb, accumulate) or
    gemm_bias(a, b, bias, c, ta, tb, accumulate), which adds the bias first and the product to the sum.
    """
    rows, inner = a.shape[::-1] if ta else a.shape
    columns = b.shape[0] if tb else b.shape[1]
    expect("gemm", b, (columns, inner) if tb else (inner, columns))
    expect("gemm", c, (rows, columns))
    out = "u" if accumulate else "w"
    params = (ta, tb, accumulate)
    flops = 2 * rows * columns * inner
    if bias is None:
        return Operation("gemm", (a, b, c), "rr" + out, params, flops)
    expect("gemm", bias, (columns,))
    return Operation("gemm_bias", (a, b, bias, c), "rrr" + out, params, flops)
