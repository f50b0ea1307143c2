"""cuDNN's attention on a real GPU, where its frontend is installed: against the plain kernels, in groups of heads, twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from asynctile.device import open_device
from asynctile.kernels.bf16 import from_bf16, to_bf16
from asynctile.program.precision import BF16
from tests.gpu.conftest import NAME
from tests.gpu.machine import HardMachine
from tests.kernels import reference

pytestmark = pytest.mark.gpu


@contextmanager
def opened() -> Iterator[Any]:
    """Open a device that computes in bf16, with cuDNN if it is there."""
    made = open_device(NAME, precision="bf16")
    made.start()
    made.warm(None)
    try:
        yield made
    finally:
        made.close()


def attended(device: Any, seqs: int, tokens: int, heads: int, hs: int) -> list[np.ndarray]:
    """Return out, log-sum-exp, dq, dk and dv of random tiles."""
    machine, rows = HardMachine(device), seqs * tokens
    q, k, v, dout = (to_bf16(reference.random(seed, rows, heads * hs)) for seed in range(4))
    out, dq, dk, dv = (np.full((rows, heads * hs), 0xFFFF, BF16) for _ in range(4))
    stats, delta = np.full((2 * heads, rows), np.nan, np.float32), np.full((heads, rows), np.nan, np.float32)
    machine.run("attention", [q, k, v, out, stats], (seqs, heads, True, True))
    machine.run("attention_backward_whole", [q, k, v, out, dout, stats, delta, dq, dk, dv], (seqs, heads))
    return [out, stats[:heads], dq, dk, dv]


def test_cudnn_agrees_with_the_plain_kernels_with_itself_and_in_groups_of_heads(
    rehearsed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Gradients that need more than the workspace at once, on Hopper and in a rehearsal.
    shape = (3, 128, 15, 16) if rehearsed else (4, 1024, 30, 64)
    with opened() as device:
        driver = type(device.driver)
        if not device.driver.attention.startswith("cuDNN"):
            pytest.skip(f"cuDNN is {device.driver.attention}")
    used: list[bool] = []
    with monkeypatch.context() as patch:  # a device keeps the calls of its driver, so it is opened after them
        for call in ("attend", "attend_backward"):
            ask = getattr(driver, call)
            patch.setattr(driver, call, lambda *args, ask=ask: used.append(ask(*args)) or used[-1])
        with opened() as device:
            found, again = attended(device, *shape), attended(device, *shape)
    assert used == [True] * 4, "cuDNN was not used"
    assert all(one.tobytes() == other.tobytes() for one, other in zip(found, again, strict=True))
    for call in ("attend", "attend_backward"):
        monkeypatch.setattr(driver, call, lambda *args: False)
    with opened() as device:
        plain = attended(device, *shape)
    for one, other in zip(found, plain, strict=True):
        assert reference.error(*(from_bf16(x) if x.dtype == BF16 else x for x in (one, other))) < 2.0**-5
