"""C = op(A) op(B), added to C or to another matrix, with an optional bias row."""

from __future__ import annotations

from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile


def gemm(
    a: Tile,
    b: Tile,
    c: Tile,
    *,
    ta: bool = False,
    tb: bool = False,
    accumulate: bool = False,
    bias: Tile | None = None,
    source: Tile | None = None,
) -> Operation:
    """c (R, C) = op(a) (R, K) op(b) (K, C), plus c if `accumulate` or plus source (R, C), plus bias (C,).

    a and b are T, c and source U; what c held does not count where there is a source. ta, tb: use the transpose of a or b.
    Kernel: gemm(a, b, c, ta, tb, accumulate), gemm_bias(a, b, bias, c, ta, tb, accumulate),
    gemm_onto(a, b, source, c, ta, tb) or gemm_bias_onto(a, b, bias, source, c, ta, tb). The bias is added first, to c or to
    the source, and the product to the sum. Raises ValueError for a source if it is also to `accumulate`.
    """
    rows, inner = a.shape[::-1] if ta else a.shape
    columns = b.shape[0] if tb else b.shape[1]
    expect("gemm", b, (columns, inner) if tb else (inner, columns))
    expect("gemm", c, (rows, columns))
    flops = 2 * rows * columns * inner
    kernel, read = "gemm", [a, b]
    if bias is not None:
        expect("gemm", bias, (columns,))
        kernel, read = "gemm_bias", [a, b, bias]
    if source is None:
        access = "r" * len(read) + ("u" if accumulate else "w")
        return Operation(kernel, (*read, c), access, (ta, tb, accumulate), flops)
    if accumulate:
        raise ValueError(f"gemm: {c.name} cannot be added to and begin with {source.name}; choose one")
    expect("gemm", source, (rows, columns))
    return Operation(f"{kernel}_onto", (*read, source, c), "r" * len(read) + "rw", (ta, tb), flops)
