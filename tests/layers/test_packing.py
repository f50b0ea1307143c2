"""Rows of short examples: every example once and whole, no row too long, the order of the file, little room left."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers.packing import OPEN, PackedRows, fitting
from tests.laws import examples

SIZES = st.integers(1, 60)
LENGTHS = SIZES.flatmap(lambda size: st.tuples(st.just(size), st.lists(st.integers(1, size), min_size=1, max_size=300)))


def first_fit(lengths: list[int], size: int) -> list[list[int]]:
    """Return the rows of an unbounded first fit, which the packing equals while there are at most OPEN rows."""
    rows: list[list[int]] = []
    for index, length in enumerate(lengths):
        row = next((row for row in rows if sum(lengths[i] for i in row) + length <= size), None)
        if row is None:
            rows.append([index])
        else:
            row.append(index)
    return rows


@given(LENGTHS)
@examples(100)
def test_each_example_is_in_one_row_and_no_row_is_too_long(case: tuple[int, list[int]]) -> None:
    size, lengths = case
    packing = PackedRows(np.asarray(lengths), size)
    rows = [packing[row] for row in range(len(packing))]
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(row and row == sorted(row) and sum(lengths[index] for index in row) <= size for row in rows)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    if len(rows) <= OPEN:
        assert rows == first_fit(lengths, size)


def test_only_so_many_rows_wait_for_a_short_example() -> None:
    """Rows with room for 1, 2, 3, ... tokens: the fullest are closed, and later examples find the others."""
    size = 4 * OPEN
    lengths = [*range(size - 1, size - 1 - OPEN - 2, -1), 1, 1]
    packing = PackedRows(np.asarray(lengths), size)
    assert len(packing) == OPEN + 2
    assert [packing[row] for row in range(4)] == [[0], [1], [2, OPEN + 2, OPEN + 3], [3]]


def test_many_short_chats_leave_little_room() -> None:
    lengths = np.random.default_rng(1).integers(5, 300, 5000)
    packing = PackedRows(lengths, 1024)
    assert len(packing) * 1024 < 1.02 * lengths.sum()


@pytest.mark.parametrize(("lengths", "rows", "size", "expected"), [
    ([4] * 40, 4, 40, (40, 4)),  # as long as asked for
    ([4] * 40, 5, 40, (20, 8)),  # a half gives enough rows
    ([4] * 6, 4, 40, (5, 6)),
    ([4] * 3, 4, 40, (5, 3)),  # no length does
    ([4, 4, 11], 4, 40, (20, 1)),  # a quarter would not take the last one
    ([40], 1, 40, (40, 1)),
    ([3, 2], 2, 5, (3, 2)),  # rounded up
])  # fmt: skip
def test_rows_are_shorter_where_there_are_few_examples(
    lengths: list[int], rows: int, size: int, expected: tuple[int, int]
) -> None:
    packing = fitting(np.asarray(lengths), rows, size)
    assert (packing.size, len(packing)) == expected
