"""Every kernel against float64 on a real GPU: the tests of tests/kernels that take a machine, on another machine.

They cover what a GPU's compiler and threads do differently: other orders of threads, fused multiply-add, cuBLAS in place of
NumPy.
"""

from __future__ import annotations

import importlib
import inspect

import pytest

pytestmark = pytest.mark.gpu

MODULES = (
    "test_adamw", "test_attention", "test_attention_groups", "test_attention_page", "test_cross_entropy", "test_elementwise",
    "test_embedding", "test_gelu", "test_gemm", "test_gemm_rows", "test_layernorm", "test_rmsnorm", "test_rope", "test_rows",
    "test_swiglu",
)  # fmt: skip

for module in MODULES:
    for name, test in vars(importlib.import_module(f"tests.kernels.{module}")).items():
        if name.startswith("test_") and "machine" in inspect.signature(test).parameters:
            globals()[f"{module}: {name.removeprefix('test_')}"] = test
