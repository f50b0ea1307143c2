"""Which heads of keys and values attention takes, and which it refuses."""

import numpy as np
import pytest

from asynctile.ops import (
    attention,
    attention_backward,
    attention_backward_whole,
    attention_page,
)
from asynctile.ops.attention import ExampleStarts
from asynctile.storage.tile import Tile

HEADS, ROWS = 6, 8


def tile(name, *shape, dtype=np.float32):
    return Tile(name, shape, np.dtype(dtype))


def every_operation(columns):
    """Return each operation with six query heads of four columns, and keys and values of so many columns."""
    q, out, dout, dq = (tile(name, ROWS, 24) for name in ("q", "out", "dout", "dq"))
    k, v, dk, dv = (tile(name, ROWS, columns) for name in ("k", "v", "dk", "dv"))
    stats, delta, page = tile("stats", 12, ROWS), tile("delta", 6, ROWS), tile("page", 10, columns)
    rows, pages, where = tile("rows", 2 * ROWS), tile("pages", 2), {"first": True, "diagonal": True}
    packed = {**where, "packed": ExampleStarts(tile("positions", ROWS, dtype=np.int32), 0)}
    return [
        lambda: attention(q, k, v, out, stats, seqs=2, heads=HEADS, **where),
        lambda: attention_backward(q, k, v, dout, stats, delta, dq, dk, dv, seqs=2, heads=HEADS, **where),
        lambda: attention_backward_whole(q, k, v, out, dout, stats, delta, dq, dk, dv, seqs=2, heads=HEADS),
        lambda: attention(q, k, v, out, stats, seqs=2, heads=HEADS, **packed),
        lambda: attention_backward(q, k, v, dout, stats, delta, dq, dk, dv, seqs=2, heads=HEADS, **packed),
        lambda: attention_page(q, k, v, page, rows, pages, out, stats, number=0, heads=HEADS, first=True, last=True),
    ]


@pytest.mark.parametrize("columns", [4, 8, 12, 24])
def test_keys_may_have_fewer_heads_and_cost_the_same(columns):
    assert [make().flops for make in every_operation(columns)] == [make().flops for make in every_operation(24)]


@pytest.mark.parametrize("columns", [0, 2, 16, 20, 48])
def test_heads_of_keys_that_do_not_divide_those_of_queries_are_refused(columns):
    for make in every_operation(columns):
        with pytest.raises(ValueError, match=rf"k has {columns} columns, expected heads of 4 columns, .* divides 6"):
            make()


def test_a_packed_row_has_a_position_for_each_query():
    q, k, v, out = (tile(name, ROWS, 24) for name in ("q", "k", "v", "out"))
    with pytest.raises(ValueError, match=r"attention_packed: positions has shape \(7,\), expected \(8,\)"):
        attention(q, k, v, out, tile("stats", 12, ROWS), seqs=2, heads=HEADS, first=True, diagonal=True,
                  packed=ExampleStarts(tile("positions", 7), 0))
