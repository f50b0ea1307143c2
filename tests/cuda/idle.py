"""A driver that has done everything before it is asked, for asynctile/device/driver.py's Driver: only the host works.

Addresses on the device are mere numbers; nothing is copied or computed. The one that behaves as a GPU does is driver.py.
"""

from __future__ import annotations

import itertools
from typing import Any

MEMORY = 1 << 40


class IdleDriver:
    """One GPU of a TiB."""

    name = title = "cuda:0"
    capability = (9, 0)
    epilogues = attention = "idle"

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._address = 1 << 44

    def _nothing(self, *given: Any, **named: Any) -> None:
        pass

    bind = free = pin = unpin = destroy_stream = destroy_event = record = wait = synchronize = copy = load = _nothing
    launch = open_gemm = open_attention = gemm = begin_capture = end_capture = launch_graph = destroy_graph = close = _nothing

    def _done(self, *given: Any) -> bool:
        return True

    gemm_onto = attend = attend_backward = _done

    def _number(self, **named: Any) -> int:
        return next(self._numbers)

    new_stream = new_event = _number

    def memory(self) -> tuple[int, int]:
        return MEMORY, MEMORY

    def malloc(self, nbytes: int) -> int:
        address, self._address = self._address, self._address + -(-nbytes // 256) * 256
        return address

    def elapsed_s(self, start: int, end: int) -> float:
        return 0.0
