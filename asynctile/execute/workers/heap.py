"""Binary heaps of ready entries, the earliest in the program first: one for each queue (places.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.execute.workers import places
from asynctile.kernels.cpu.jit import inline


@inline()
def push(queues: Any, heaps: Any, queue: int, entry: int) -> None:
    place = queues[places.SIZE, queue]
    queues[places.SIZE, queue] = place + 1
    while place > 0:
        above = (place - 1) >> 1
        if heaps[queue, above] <= entry:
            break
        heaps[queue, place] = heaps[queue, above]
        place = above
    heaps[queue, place] = entry


@inline()
def pop(queues: Any, heaps: Any, queue: int) -> Any:
    size = queues[places.SIZE, queue] - 1
    queues[places.SIZE, queue] = size
    first, moved, place = heaps[queue, 0], heaps[queue, size], 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and heaps[queue, below + 1] < heaps[queue, below]:
            below += 1
        if heaps[queue, below] >= moved:
            break
        heaps[queue, place] = heaps[queue, below]
        place = below
    heaps[queue, place] = moved
    return np.int64(first)
