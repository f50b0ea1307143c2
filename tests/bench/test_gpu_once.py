"""One small call of every kernel, as in a GPU's first minute: right results pass, wrong ones are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asynctile.kernels.cuda import KERNELS
from tests.cuda.build import library, missing
from tests.cuda.machine import SoftMachine

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


class Spoilt:
    """A machine whose results lack one element."""

    def __init__(self, operand: int) -> None:
        self._machine, self._operand = SoftMachine(library()), operand

    def run(self, verb: str, arrays: Any, params: Any, number: Any = None) -> None:
        self._machine.run(verb, arrays, params, number)
        spoilt = arrays[self._operand].reshape(-1)
        spoilt[0] = 0xFFFF if spoilt.dtype == np.uint16 else np.nan


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_every_verb_is_called_and_right(bench: Any, dtype: str) -> None:
    once = bench("gpu_once")
    calls = once.every_call(dtype)
    assert calls.keys() == KERNELS.keys() and next(iter(calls)).startswith("adamw")
    assert {verb: once.run_once(SoftMachine(library()), verb, call) for verb, call in calls.items()} == dict.fromkeys(calls)


@pytest.mark.parametrize(("verb", "operand"), [("adamw", 0), ("attention", 3), ("attention_backward_whole", 9), ("gelu", 1)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_one_wrong_element_is_named_by_its_operand(bench: Any, verb: str, operand: int, dtype: str) -> None:
    once = bench("gpu_once")
    call = once.every_call(dtype)[verb]
    assert once.run_once(Spoilt(operand), verb, call) == f"operands [{operand}] are wrong"
