"""Binary heaps of entries, the earliest in the program first: one of operations and one of each direction of the link."""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.execute.workers import places
from asynctile.kernels.cpu.jit import inline


@inline()
def push(control: Any, heaps: Any, which: int, entry: int) -> None:
    place = control[places.READY + which]
    control[places.READY + which] = place + 1
    while place > 0:
        above = (place - 1) >> 1
        if heaps[which, above] <= entry:
            break
        heaps[which, place] = heaps[which, above]
        place = above
    heaps[which, place] = entry


@inline()
def pop(control: Any, heaps: Any, which: int) -> Any:
    size = control[places.READY + which] - 1
    control[places.READY + which] = size
    first, moved, place = heaps[which, 0], heaps[which, size], 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and heaps[which, below + 1] < heaps[which, below]:
            below += 1
        if heaps[which, below] >= moved:
            break
        heaps[which, place] = heaps[which, below]
        place = below
    heaps[which, place] = moved
    return np.int64(first)
