"""The machine that the tests of this folder run kernels on. Here it is the CPU, by tests/cuda; tests/gpu has another."""

from __future__ import annotations

import shutil

import pytest

from tests.cuda.build import library
from tests.cuda.machine import SoftMachine


@pytest.fixture
def machine():
    """What has run(verb, arrays, params, number=None)."""
    if not shutil.which("g++"):
        pytest.skip("there is no g++ to compile CUDA kernels for the CPU")
    library().order("forward")
    return SoftMachine(library())
