"""Blocks of products in registers, written as explicit vector arithmetic of LLVM for every processor.

The bits of a result follow from the orders that this file fixes. They do not depend on the width of a register, nor on the rows
that are computed side by side, whose number only follows the number of registers. The loops over blocks are in gemm_rows.py,
the kernels there and in attention_page.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from asynctile.kernels.cpu.jit import intrinsic

#: Elements of a vector: one register of AVX-512, two of AVX2, four of NEON.
LANES = 16
#: Kinds of blocks. For c += a b: WIDE for one row, NARROW for many, SOME for the last columns, at most LANES. For c += a b^T,
#: where columns of c are rows of b: the same for one row, for many, and for one column.
WIDE, NARROW, SOME, WIDE_TRANSPOSED, NARROW_TRANSPOSED, ONE_TRANSPOSED = range(6)
#: Per kind: vectors of columns (for transposed products columns, a power of 2), and the most rows. _LARGE is for processors
#: with 32 registers of a whole vector, _SMALL for all others. One row is bound by memory, so it takes long stretches of b.
_LARGE = (8, 1), (4, 6), (1, 2), (8, 1), (4, 6), (1, 2)
_SMALL = (4, 1), (1, 6), (1, 2), (4, 1), (2, 2), (1, 2)

_INT, _WORD, _REAL = ir.IntType(64), ir.IntType(32), ir.FloatType()
_VECTOR = ir.VectorType(_REAL, LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)


def _shape(context: Any, kind: int) -> tuple[int, int]:
    features = context.codegen().magic_tuple()[2]  # of the target processor, as the cache on disk knows it
    return (_LARGE if "+avx512f" in features else _SMALL)[kind]


@intrinsic
def block_of(typing: Any, kind: Any) -> Any:
    """Return (columns, most rows) of a kind of block. The kind is a literal."""
    if not isinstance(kind, types.IntegerLiteral):
        return None

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        width, rows = _shape(context, kind.literal_value)
        columns = width * LANES if kind.literal_value in (WIDE, NARROW, SOME) else width
        return context.make_tuple(builder, signature.return_type, [_INT(columns), _INT(rows)])

    return types.UniTuple(types.int64, 2)(kind), emit


@intrinsic
def add_block(
    typing: Any, kind: Any, columns: Any, rows: Any, inner: Any, a: Any, a_step: Any, b: Any, b_step: Any, c: Any, c_step: Any
) -> Any:
    """Add to a block of c (rows, columns) the product of a (rows, inner) and b.

    All are float32 at addresses; `_step` is the distance from row to row, in elements. kind: a literal. rows: 1 up to the most
    rows of block_of(kind). columns: the columns of block_of(kind), or fewer for SOME.
    """
    if not isinstance(kind, types.IntegerLiteral):
        return None
    which = kind.literal_value

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        width, most = _shape(context, which)
        mask = _first_lanes(builder, args[1]) if which == SOME else None

        def for_rows(rows: int) -> None:
            if which in (WIDE, NARROW, SOME):
                _times(builder, args[3:], rows, width, mask)
            else:
                _times_transposed(builder, args[3:], rows, width)

        _for_rows(builder, args[2], most, for_rows)
        return context.get_dummy_value()

    return types.void(kind, *[types.int64] * 9), emit


def _splat(builder: Any, value: Any) -> Any:
    kind = ir.VectorType(value.type, LANES)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _WORD(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_WORD, LANES), [0] * LANES))


def _first_lanes(builder: Any, count: Any) -> Any:
    numbers = ir.Constant(ir.VectorType(_INT, LANES), list(range(LANES)))
    return builder.icmp_unsigned("<", numbers, _splat(builder, count))


def _picked(builder: Any, x: Any, y: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_WORD, len(lanes)), lanes))


def _call(builder: Any, name: str, result: Any, args: list[Any]) -> Any:
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _place(builder: Any, address: Any, *offsets: Any) -> Any:
    """Return an address plus the sum of these offsets, each a number of float32 elements."""
    for offset in offsets:
        address = builder.add(address, builder.shl(offset, _INT(2)))
    return address


def _load(builder: Any, address: Any, mask: Any = None) -> Any:
    """Load a vector. Lanes outside the mask are zero and not read."""
    place = builder.inttoptr(address, _VECTOR.as_pointer())
    if mask is None:
        return builder.load(place, align=4)
    return _call(builder, "llvm.masked.load.v16f32.p0", _VECTOR, [place, _WORD(4), mask, _ZERO])


def _ask(builder: Any, address: Any) -> None:
    """Prefetch the cache line at an address into the L2 cache. An address that belongs to nobody does no harm."""
    place = builder.inttoptr(address, ir.IntType(8).as_pointer())
    _call(builder, "llvm.prefetch.p0", ir.VoidType(), [place, _WORD(0), _WORD(2), _WORD(1)])


def _add(builder: Any, value: Any, address: Any, mask: Any = None) -> None:
    """Add a vector of any length to the values at an address."""
    if mask is not None:
        total = builder.fadd(_load(builder, address, mask), value)
        place = builder.inttoptr(address, _VECTOR.as_pointer())
        _call(builder, "llvm.masked.store.v16f32.p0", ir.VoidType(), [total, place, _WORD(4), mask])
        return
    place = builder.inttoptr(address, value.type.as_pointer())
    builder.store(builder.fadd(builder.load(place, align=4), value), place, align=4)


def _fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return _call(builder, "llvm.fma.v16f32", _VECTOR, [x, y, z])


def _loop(
    builder: Any, start: Any, end: Any, step: int, values: list[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Emit values = body(i, values) for i from start to below end; the values stay in registers."""
    before = builder.block
    head, inside, behind = (builder.append_basic_block(name) for name in ("head", "inside", "behind"))
    builder.branch(head)
    builder.position_at_end(head)
    index, *carried = phis = [builder.phi(value.type) for value in (start, *values)]
    for phi, value in zip(phis, (start, *values), strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", index, end), inside, behind)
    builder.position_at_end(inside)
    made = body(index, carried)
    for phi, value in zip(phis, (builder.add(index, _INT(step)), *made), strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(behind)
    return carried


def _for_rows(builder: Any, rows: Any, most: int, emit: Callable[[int], None]) -> None:
    """Emit code for each number of rows up to `most`, and a switch that runs the right one."""
    after = builder.append_basic_block("after")
    choice = builder.switch(rows, after)
    for count in range(1, most + 1):
        choice.add_case(_INT(count), block := builder.append_basic_block(f"rows{count}"))
        builder.position_at_end(block)
        emit(count)
        builder.branch(after)
    builder.position_at_end(after)


def _times(builder: Any, args: Any, rows: int, vectors: int, mask: Any = None) -> None:
    """Emit a block of c += a b. Each element is one ascending chain over K, from zero, then added to c."""
    inner, a, a_step, b, b_step, c, c_step = args

    def body(k: Any, sums: list[Any]) -> list[Any]:
        line = _place(builder, b, builder.mul(k, b_step))
        weights = [_load(builder, _place(builder, line, _INT(j * LANES)), mask) for j in range(vectors)]
        made = []
        for i in range(rows):
            at = _place(builder, a, k, builder.mul(_INT(i), a_step))
            x = _splat(builder, builder.load(builder.inttoptr(at, _REAL.as_pointer())))
            made += [_fma(builder, x, weights[j], sums[i * vectors + j]) for j in range(vectors)]
        return made

    sums = _loop(builder, _INT(0), inner, 1, [_ZERO] * (rows * vectors), body)
    for i in range(rows):
        for j in range(vectors):
            _add(builder, sums[i * vectors + j], _place(builder, c, builder.mul(_INT(i), c_step), _INT(j * LANES)), mask)


def _times_transposed(builder: Any, args: Any, rows: int, keys: int) -> None:
    """Emit a block of c += a b^T. Each element is LANES ascending chains, from zero, each over every LANES-th of K.

    The chains are then added by halves, and the sum is added to c. With several rows the next block's part of b is prefetched:
    otherwise memory would idle while the other rows are computed.
    """
    inner, a, a_step, b, b_step, c, c_step = args
    whole = builder.and_(inner, _INT(-LANES))

    def body(k: Any, sums: list[Any], mask: Any = None) -> list[Any]:
        right = [_load(builder, _place(builder, b, k, builder.mul(_INT(j), b_step)), mask) for j in range(keys)]
        for j in range(keys) if rows > 1 else ():
            _ask(builder, _place(builder, b, k, builder.mul(_INT(keys + j), b_step)))
        made = []
        for i in range(rows):
            left = _load(builder, _place(builder, a, k, builder.mul(_INT(i), a_step)), mask)
            made += [_fma(builder, left, right[j], sums[i * keys + j]) for j in range(keys)]
        return made

    sums = _loop(builder, _INT(0), whole, LANES, [_ZERO] * (rows * keys), body)
    rest = _first_lanes(builder, builder.sub(inner, whole))
    sums = _loop(builder, whole, inner, LANES, sums, lambda k, sums: body(k, sums, rest))
    for i in range(rows):
        total = _lane_sums(builder, sums[i * keys : (i + 1) * keys])
        _add(builder, _picked(builder, total, total, list(range(keys))), _place(builder, c, builder.mul(_INT(i), c_step)))


def _lane_sums(builder: Any, vectors: list[Any]) -> Any:
    """Return the sum of each vector, in the first lanes of one vector. The number of vectors is a power of 2.

    The order is fixed: lane l with l + 8, then with l + 4, l + 2, l + 1.
    """
    for lanes in (16, 8, 4, 2):
        low = [at + i for at in range(0, LANES, lanes) for i in range(lanes // 2)]
        high = [lane + lanes // 2 for lane in low]
        pairs = list(zip(vectors[::2], vectors[1::2], strict=True)) if len(vectors) > 1 else [(vectors[0], vectors[0])]
        vectors = [
            builder.fadd(
                _picked(builder, x, y, low + [lane + LANES for lane in low]),
                _picked(builder, x, y, high + [lane + LANES for lane in high]),
            )
            for x, y in pairs
        ]
    return vectors[0]
