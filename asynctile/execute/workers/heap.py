"""Binary heaps of ready entries, the earliest in the program first: one for each queue (places.py).

Places in a heap are unsigned, like the entries themselves (worker.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.execute.workers import places
from asynctile.kernels.cpu.jit import inline

_ONE = np.uint64(1)


@inline()
def push(queues: Any, heaps: Any, queue: int, entry: int) -> None:
    place = np.uint64(queues[places.SIZE, queue])
    queues[places.SIZE, queue] += 1
    while place > 0:
        above = (place - _ONE) >> _ONE
        if heaps[queue, above] <= entry:
            break
        heaps[queue, place] = heaps[queue, above]
        place = above
    heaps[queue, place] = entry


@inline()
def pop(queues: Any, heaps: Any, queue: int) -> Any:
    queues[places.SIZE, queue] -= 1
    size, place = np.uint64(queues[places.SIZE, queue]), np.uint64(0)
    first, moved = heaps[queue, 0], heaps[queue, size]
    while True:
        below = place + place + _ONE
        if below >= size:
            break
        if below + _ONE < size and heaps[queue, below + _ONE] < heaps[queue, below]:
            below += _ONE
        if heaps[queue, below] >= moved:
            break
        heaps[queue, place] = heaps[queue, below]
        place = below
    heaps[queue, place] = moved
    return np.int64(first)
