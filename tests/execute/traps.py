"""Stand-ins for kernels that compiled workers can call, with the true signatures: they raise or spoil a number when told to.

They are told through a number at a fixed address, because no Python runs while a schedule is played.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types

from asynctile import Engine
from asynctile.execute.workers import native
from asynctile.kernels.cpu.jit import KERNELS, SIGNATURES
from asynctile.share import runtime_of

_SOURCE = """
def {name}({arguments}):
    told = carray(native.at({address}), 2, np.int64)
    before = told[0]
    told[0] = before - 1
    if before == 1 and told[1] == 1:
        raise RuntimeError("the kernel broke")
    true({arguments})
    if before == 1 and told[1] == 0:
        {spoil}
"""
#: By name of the kernel, made on demand.
TRAPS: dict[str, Trap] = {}


class Trap:
    """A stand-in for a kernel, by its name; compiled once a process. breaks: it raises, else its reported number is NaN."""

    def __init__(self, name: str) -> None:
        self._told = np.array([-1, 1], np.int64)
        names = [f"a{index}" for index in range(len(SIGNATURES[name][0]))]
        spoil = f"{names[-1]}[0] = np.nan" if isinstance(SIGNATURES[name][0][-1], types.Array) else "pass"
        source = _SOURCE.format(name=name, arguments=", ".join(names), address=self._told.ctypes.data, spoil=spoil)
        room: dict[str, Any] = {"carray": carray, "native": native, "np": np, "true": KERNELS[name]}
        exec(source, room)
        self.kernel = njit(list(SIGNATURES[name]), nogil=True, error_model="numpy")(room[name])

    @property
    def breaks(self) -> bool:
        return bool(self._told[1])

    @breaks.setter
    def breaks(self, value: bool) -> None:
        self._told[1] = value

    def spring_at(self, call: int) -> None:
        """Spring at the `call`-th call from now, counted from 1."""
        self._told[0] = call

    @property
    def has_sprung(self) -> bool:
        return bool(self._told[0] < 1)


def set_trap(engine: Engine, name: str, *, breaks: bool = True) -> Trap:
    """Replace the true kernel by a trap, which does the kernel's work until it is told to spring."""
    if name not in TRAPS:
        TRAPS[name] = Trap(name)
    trap = TRAPS[name]
    trap.breaks = breaks
    trap.spring_at(-1)
    runtime_of(engine).device.kernels[name] = trap.kernel
    return trap
