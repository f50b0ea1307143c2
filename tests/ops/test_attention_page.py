"""How attention_page accesses its tiles, and which tiles it refuses."""

import numpy as np
import pytest

from asynctile.ops import attention_page
from asynctile.storage.tile import Tile


def tile(name, *shape, dtype=np.float32):
    return Tile(name, shape, np.dtype(dtype))


def operands(**others):
    """Return four rows, two heads of three columns, pages of five keys, three pages."""
    shapes = dict.fromkeys(("q", "k", "v", "page", "rows", "pages", "out"), (4, 6))
    shapes |= {"page": (10, 6), "rows": (8,), "pages": (6,), "stats": (4, 4)}
    return [tile(name, *shape) for name, shape in (shapes | others).items()]


@pytest.mark.parametrize(("first", "last", "access"), [(True, False, "rrrurrww"), (False, True, "rrrurruu")])
def test_a_page_keeps_its_unwritten_part_and_a_first_page_starts_the_rows(first, last, access):
    made = attention_page(*operands(), number=2, heads=2, first=first, last=last)
    assert (made.kernel, made.access, made.params) == ("attention_page", access, (2, 2, first, last))
    assert made.flops == 2 * 2 * 4 * 5 * 6


@pytest.mark.parametrize(("others", "message"), [
    ({"k": (3, 6)}, r"k has shape \(3, 6\), expected \(4, 6\)"),
    ({"out": (4, 5)}, r"out has shape \(4, 5\), expected \(4, 6\)"),
    ({"page": (9, 6)}, r"page has shape \(9, 6\), expected \(8, 6\)"),
    ({"page": (1, 6)}, r"page has shape \(1, 6\), expected \(2, 6\)"),
    ({"page": (10, 5)}, r"page has shape \(10, 5\), expected \(10, 6\)"),
    ({"rows": (4,)}, r"rows has shape \(4,\), expected \(8,\)"),
    ({"pages": (4,)}, r"pages has shape \(4,\), expected \(6,\)"),
    ({"pages": (7,)}, r"pages has shape \(7,\), expected \(6,\)"),
    ({"stats": (2, 4)}, r"stats has shape \(2, 4\), expected \(4, 4\)"),
])  # fmt: skip
def test_operands_that_do_not_fit_are_refused(others, message):
    with pytest.raises(ValueError, match=f"attention_page: {message}"):
        attention_page(*operands(**others), number=2, heads=2, first=True, last=True)


def test_columns_that_are_not_whole_heads_are_refused():
    with pytest.raises(ValueError, match="attention_page: q has 6 columns, expected whole columns for each of 4 heads"):
        attention_page(*operands(stats=(8, 4)), number=2, heads=4, first=True, last=True)
