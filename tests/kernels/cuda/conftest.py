"""The machine on which the tests of this folder run kernels: here the CPU, by tests/cuda; tests/gpu has another."""

from __future__ import annotations

import pytest

from tests.cuda.build import library, missing
from tests.cuda.machine import SoftMachine


@pytest.fixture
def machine():
    """A machine with run(verb, arrays, params, number=None)."""
    if missing():
        pytest.skip(missing())
    library().order("forward")
    return SoftMachine(library())
