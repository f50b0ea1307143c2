"""A handle: a tile together with the events that order work on it.

The rule that keeps streams from racing: a handle keeps its last write event and all read events since. Whoever
reads waits for the write; whoever writes, writes back or takes the slot waits for all of them.
"""

from __future__ import annotations

from typing import Any

from asynctile.storage.tile import Tile


class Handle(Tile):
    """A tile with its ordering.

    array: the array over its slot (on the device; for a copy in RAM, there), None while it has no slot.
    written: event of the last operation or upload that wrote it; None: nothing pending.
    reads: events of the readers since then.
    below: event of the last download into the backing.
    """

    __slots__ = ("array", "written", "reads", "below")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.array: Any = None
        self.written: Any = None
        self.reads: list[Any] = []
        self.below: Any = None
