"""Every kernel against float64 on a real GPU: the tests of tests/kernels/cuda that take a machine, on another machine.

They cover what a GPU's compiler and threads do differently: other orders of threads, fused multiply-add, cuBLAS in place of
NumPy.
"""

from __future__ import annotations

import importlib
import inspect

import pytest

pytestmark = pytest.mark.gpu

MODULES = (
    "adamw", "attention", "attention_page", "cross_entropy", "elementwise", "embedding", "gelu", "gemm", "gemm_rows",
    "layernorm", "rows",
)  # fmt: skip

for verb in MODULES:
    for name, test in vars(importlib.import_module(f"tests.kernels.cuda.test_{verb}")).items():
        if name.startswith("test_") and "machine" in inspect.signature(test).parameters:
            globals()[f"test_{verb}: {name.removeprefix('test_')}"] = test
