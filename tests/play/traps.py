"""Kernels in disguise that compiled workers can call: with the signatures of the true ones, they break or spoil when told to.

Told through a number at a fixed address, since no Python is near when a schedule is played.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from asynctile import Engine
from asynctile.kernels.cpu.jit import KERNELS, SIGNATURES
from asynctile.play import native

_SOURCE = """
def {name}({arguments}):
    left = carray(native.at({address}), 1, np.int64)
    before = left[0]
    left[0] = before - 1
    if before == 1 and {breaks}:
        raise RuntimeError("the kernel broke")
    true({arguments})
    if before == 1 and not {breaks}:
        {last}[0] = np.nan
"""
_made: dict[tuple[str, bool], Trap] = {}


class Trap:
    """A kernel by its name; compiled once a process. breaks: it raises; else it makes the number that it reports NaN."""

    def __init__(self, name: str, *, breaks: bool) -> None:
        self._left = np.full(1, -1, np.int64)
        names = [f"a{index}" for index in range(len(SIGNATURES[name][0]))]
        source = _SOURCE.format(
            name=name, arguments=", ".join(names), address=self._left.ctypes.data, breaks=breaks, last=names[-1]
        )
        room: dict[str, Any] = {"carray": carray, "native": native, "np": np, "true": KERNELS[name]}
        exec(source, room)
        self.kernel = njit(list(SIGNATURES[name]), nogil=True, error_model="numpy")(room[name])

    def spring_at(self, call: int) -> None:
        """The `call`-th call from now, the first being 1."""
        self._left[0] = call

    @property
    def has_sprung(self) -> bool:
        return bool(self._left[0] < 1)


def set_trap(engine: Engine, name: str, *, breaks: bool = True) -> Trap:
    """Put it in the place of the true kernel; until it is told to, it does what that does."""
    if (name, breaks) not in _made:
        _made[name, breaks] = Trap(name, breaks=breaks)
    trap = _made[name, breaks]
    trap.spring_at(-1)
    engine.kernels[name] = trap.kernel
    return trap
