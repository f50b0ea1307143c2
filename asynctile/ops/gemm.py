"""Matrix products: C = op(A) op(B), added to C or to another matrix, with an optional bias row."""

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
    """Compute c (R, C) = op(a) (R, K) op(b) (K, C), plus c if `accumulate` or plus source (R, C), plus bias (C,).

    a and b are T, c and source are U. With a source, the old values of c do not count. ta, tb: use the transpose of a or b. The
    bias is added first, to c or to the source, and the product to that sum. Raises ValueError for a source together with
    `accumulate`.
    Kernel: gemm(a, b, c, ta, tb, accumulate), gemm_bias(a, b, bias, c, ta, tb, accumulate), gemm_onto(a, b, source, c, ta, tb)
    or gemm_bias_onto(a, b, bias, source, c, ta, tb).
    """
    rows, inner = a.shape[::-1] if ta else a.shape
    columns = b.shape[0] if tb else b.shape[1]
    expect("gemm", b, (columns, inner) if tb else (inner, columns))
    expect("gemm", c, (rows, columns))
    flops = 2 * rows * columns * inner
    return product("gemm", (a, b), c, (ta, tb), flops, accumulate=accumulate, bias=bias, source=source)


def product(
    verb: str,
    factors: tuple[Tile, Tile],
    c: Tile,
    transposed: tuple[bool, ...],
    flops: int,
    *,
    accumulate: bool,
    bias: Tile | None,
    source: Tile | None,
) -> Operation:
    """Return a product by the verb's kernel for this bias and source. The shapes of factors and c are already checked.

    transposed: the transposition flags that the verb's kernels take. Raises ValueError as `gemm` does.
    """
    kernel, read = verb, list(factors)
    if bias is not None:
        expect(verb, bias, c.shape[1:])
        kernel, read = f"{verb}_bias", [*factors, bias]
    if source is None:
        access = "r" * len(read) + ("u" if accumulate else "w")
        return Operation(kernel, (*read, c), access, (*transposed, accumulate), flops)
    if accumulate:
        raise ValueError(f"{verb}: {c.name} cannot both accumulate and start from {source.name}; choose one")
    expect(verb, source, c.shape)
    return Operation(f"{kernel}_onto", (*read, source, c), "r" * len(read) + "rw", transposed, flops)
