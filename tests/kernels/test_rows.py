"""The verbs that generation shares with training give a row the same bits alone as among others."""

import pytest

from tests.kernels.rows import VERBS, WIDTHS, assert_rows_are_independent
from tests.kernels.values import DTYPES, typed


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone_and_among_others(machine, verb, columns, dtype):
    assert_rows_are_independent(machine.run, verb, columns, lambda values: typed(values, dtype), (2, 7, 31, 65))
