"""Precisions: their names, which device computes in which one, and the types of tiles."""

from __future__ import annotations

import numpy as np
import pytest

from asynctile.program.precision import BF16, PRECISIONS, check_precision, compute_dtype


def test_a_precision_that_does_not_exist_or_that_the_device_lacks_is_refused() -> None:
    for name in PRECISIONS:
        check_precision(name, "cuda:1")
    check_precision("fp32", "cpu")
    with pytest.raises(ValueError, match="precision 'half' is not known; expected 'fp32', 'tf32' or 'bf16'"):
        check_precision("half", "cuda:0")
    for device in ("cpu", "emulated", "auto"):
        with pytest.raises(ValueError, match="precision 'bf16' needs device='cuda:N'; cpu and emulated compute in fp32"):
            check_precision("bf16", device)
    assert [compute_dtype(name) for name in PRECISIONS] == [np.float32, np.float32, BF16]
