"""What a device offers to the engine: memory cut into slots, streams, and the three things that run on them.

Everything here enqueues and returns an event; nothing blocks but `close`. Ordering is the caller's: each call names
the events it must wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from asynctile.operation import Operation
from asynctile.storage.arena import Pool, Slot
from asynctile.stream import Event, Stream

#: Called while kernels are compiled: (kernel, how many are ready, of how many).
Report = Callable[[str, int, int], None]


class Device(Protocol):
    """The contract that every device passes (tests/device/test_contract.py).

    name: as given to Engine. has_link: there is a host tier below, and bytes must be uploaded to be used.
    """

    name: str
    has_link: bool

    def start(self) -> None:
        """Start the streams."""

    def warm(self, report: Report | None) -> None:
        """Compile what is compiled on first use. Blocks."""

    def map_pool(self, pool: Pool) -> None:
        """Back a pool of slots with memory."""

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Any:
        """The device array over a slot."""

    def launch(self, operation: Operation, arrays: Sequence[Any], number: Any, waits: Sequence[Event]) -> Event:
        """Run an operation's kernel; `number`: float64 view for what it reports, or None."""

    def upload(self, target: Any, source: np.ndarray, waits: Sequence[Event]) -> Event:
        """Host array to device array."""

    def download(self, target: np.ndarray, source: Any, waits: Sequence[Event]) -> Event:
        """Device array to host array."""

    def stall_s(self) -> float:
        """Seconds, averaged over what computes in parallel, in which operations waited for copies and nothing else ran."""

    def streams(self) -> list[Stream]:
        """All streams, for a trace."""

    def close(self) -> None:
        """Run what is enqueued, end the streams, let the memory go."""
