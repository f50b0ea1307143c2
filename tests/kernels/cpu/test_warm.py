"""Signatures, the disk cache across processes, and exp."""

import os
import subprocess
import sys

import numpy as np
import pytest
from numba import njit

import asynctile.ops as ops
from asynctile.kernels import cpu
from asynctile.kernels.cpu.exp import exp
from asynctile.kernels.cpu.jit import FUSE, SIGNATURES

#: Loads gemm from the cache in a process that has compiled nothing, and uses it.
PROCESS = """
import numpy as np
from asynctile.kernels import cpu
gemm = cpu.KERNELS["gemm"]
a = np.eye(3, dtype=np.float32)
c = np.full((3, 3), np.nan, np.float32)
names = []
cpu.warm(lambda name, index, total: names.append((name, index, total)))
gemm(a, 2 * a, c, False, False, False)
assert (c == 2 * np.eye(3)).all()
assert names[-1][1] + 1 == names[-1][2] == len(cpu.KERNELS)
assert cpu.compiled()
print(sum(sum(function.stats.cache_misses.values()) for function in cpu.KERNELS.values()))
"""


def test_every_verb_has_a_kernel():
    assert set(cpu.KERNELS) == {*ops.__all__, "gemm_bias", "gemm_onto", "gemm_bias_onto"}


def test_another_process_loads_what_one_compiled(tmp_path):
    environment = dict(os.environ, NUMBA_CACHE_DIR=str(tmp_path), PYTHONPATH=os.pathsep.join(sys.path))
    misses = [
        int(subprocess.run([sys.executable, "-c", PROCESS], env=environment, check=True, capture_output=True).stdout)
        for _ in range(2)
    ]
    assert misses[0] > 0
    assert misses[1] == 0


def test_calls_use_the_compiled_signatures():
    cpu.warm()
    function = cpu.KERNELS["column_sums"]
    function(np.zeros((4, 5), np.float32), np.zeros(5, np.float32), True)
    cpu.KERNELS["fill"](np.zeros(5, np.float32), 1.0)
    for name, dispatcher in cpu.KERNELS.items():
        assert len(dispatcher.signatures) == len(SIGNATURES[name]), name


@njit(error_model="numpy", fastmath=FUSE)
def exp_of(x, y):
    for i in range(x.size):
        y[i] = exp(x[i])


def test_exp_is_accurate():
    x = np.linspace(-87.3, 88.72, 1_000_001, dtype=np.float32)
    y, expected = np.empty_like(x), np.exp(x.astype(np.float64))
    exp_of(x, y)
    assert (np.abs(y - expected) / np.spacing(expected.astype(np.float32))).max() < 2.0


@pytest.mark.parametrize("count", [1, 100])
def test_exp_at_the_ends(count):
    ends = {-np.inf: 0, -1e30: 0, -88.0: 0, 0.0: 1, 88.8: np.inf, 1e30: np.inf, np.inf: np.inf, np.nan: np.nan}
    for value, expected in ends.items():
        x, y = np.full(count, value, np.float32), np.empty(count, np.float32)
        exp_of(x, y)
        np.testing.assert_array_equal(y, np.full(count, expected, np.float32))
