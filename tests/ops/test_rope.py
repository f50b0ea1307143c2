"""How rope and rope_rows access their tiles, and which tiles they refuse."""

import numpy as np
import pytest

from asynctile.ops import rope, rope_rows
from asynctile.storage.tile import Tile

ROTATION = (10000, 0, 0, 0, 0)


def tile(name, *shape, dtype=np.float32):
    return Tile(name, shape, np.dtype(dtype))


def test_rows_are_rotated_in_place_and_the_rotation_joins_the_parameters():
    made = rope(tile("q", 8, 24), seqs=2, start=5, heads=3, inverse=True, rotation=ROTATION)
    assert (made.kernel, made.access, made.params) == ("rope", "u", (2, 5, 3, True, 10000.0, 0.0, 0.0, 0.0, 0.0))
    made = rope_rows(tile("rows", 8, dtype=np.int32), tile("q", 8, 24), heads=3, rotation=ROTATION)
    assert (made.kernel, made.access, made.params) == ("rope_rows", "ru", (3, False, 10000.0, 0.0, 0.0, 0.0, 0.0))
    assert all(isinstance(number, float) for number in made.params[2:])


@pytest.mark.parametrize(("columns", "heads"), [(24, 5), (15, 3)])
def test_heads_without_pairs_of_columns_are_refused(columns, heads):
    message = f"q has {columns} columns, expected an even number for each of {heads} heads"
    with pytest.raises(ValueError, match=f"rope: {message}"):
        rope(tile("q", 8, columns), seqs=1, start=0, heads=heads, inverse=False, rotation=ROTATION)
    with pytest.raises(ValueError, match=f"rope_rows: {message}"):
        rope_rows(tile("rows", 8), tile("q", 8, columns), heads=heads, rotation=ROTATION)


def test_each_row_has_a_position():
    with pytest.raises(ValueError, match=r"rope_rows: rows has shape \(7,\), expected \(8,\)"):
        rope_rows(tile("rows", 7), tile("q", 8, 24), heads=3, rotation=ROTATION)
