"""The order in which the threads of a block run changes no bit; if it did, a kernel would lack a barrier."""

import re

import numpy as np
import pytest

from asynctile.kernels.cuda import KERNELS
from tests.cuda.build import library, missing
from tests.cuda.machine import SoftMachine
from tests.kernels.calls import calls
from tests.kernels.values import DTYPES
from tests.laws import law

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def outcome(verb, dtype, order):
    """Return all bytes that a verb leaves."""
    arrays, params, reports = calls(dtype)[verb]
    number = np.full(1, np.nan) if reports else None
    kernels = library()
    kernels.order(order)
    try:
        SoftMachine(kernels).run(verb, arrays, params, number)
    finally:
        kernels.order("forward")
    return b"".join(array.tobytes() for array in arrays) + (number.tobytes() if reports else b"")


@pytest.mark.parametrize("verb", sorted(KERNELS.keys() - {name for name in KERNELS if re.match("attention(?!_page)", name)}))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("orders", [("reversed", 1), law(("reversed", 1, 2, 3))], ids=len)
def test_the_order_of_threads_changes_no_bit(verb, dtype, orders):
    expected = outcome(verb, dtype, "forward")
    for order in orders:
        assert outcome(verb, dtype, order) == expected
