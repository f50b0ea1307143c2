"""gemm_rows gives the same bits on processors with vectors of another width."""

import os
import subprocess
import sys

import llvmlite.binding as llvm
import numpy as np
import pytest

from asynctile.kernels.cpu import KERNELS
from tests.kernels.reference import random

#: Runs gemm_rows on the operands in a file, for a processor without AVX-512, and writes the result.
OTHER = """
import sys
import numpy as np
from asynctile.kernels.cpu import KERNELS
given = np.load(sys.argv[1])
made = {}
for tb in (False, True):
    made[str(tb)] = given["c"].copy()
    KERNELS["gemm_rows"](given["a"], given["bt" if tb else "b"], made[str(tb)], tb, True)
    (text,) = KERNELS["gemm_rows"].inspect_asm().values()
    assert "vfmadd" in text and "ymm" in text and "zmm" not in text
np.savez(sys.argv[2], **made)
"""


@pytest.mark.laws
@pytest.mark.skipif(llvm.get_host_cpu_features().get("avx512f") is not True, reason="there is but one width of vectors")
def test_the_width_of_a_processors_vectors_changes_no_bit(tmp_path):
    a, c = random(1, 7, 75), random(2, 7, 85)
    b = random(3, 75, 85)
    bt = np.ascontiguousarray(b.T)
    np.savez(tmp_path / "given.npz", a=a, b=b, bt=bt, c=c)
    other = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+sse4.2,+avx,+avx2,+fma", "NUMBA_CACHE_DIR": str(tmp_path)}
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), **other)
    command = [sys.executable, "-P", "-c", OTHER, str(tmp_path / "given.npz"), str(tmp_path / "made.npz")]
    subprocess.run(command, env=environment, check=True)
    for tb in (False, True):
        KERNELS["gemm_rows"](a, bt if tb else b, expected := c.copy(), tb, True)
        assert np.load(tmp_path / "made.npz")[str(tb)].tobytes() == expected.tobytes()
