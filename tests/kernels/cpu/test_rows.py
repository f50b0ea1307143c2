"""The verbs that generation shares with training give a row the same bits alone as among others."""

import pytest

from asynctile.kernels.cpu import KERNELS
from tests.kernels.rows import VERBS, WIDTHS, assert_rows_are_independent


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("columns", WIDTHS)
def test_a_row_has_the_same_bits_alone_and_among_others(verb, columns):
    def run(kernel, arrays, params):
        KERNELS[kernel](*arrays, *params)

    assert_rows_are_independent(run, verb, columns, lambda values: values, (2, 3, 4, 7, 16, 31, 64, 65))
