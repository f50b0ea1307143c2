"""The order in which a node uses its network: pieces of temporary tiles first, those of persistent tiles in what is left.

A late sum makes another node wait, and that one makes others wait. A new weight is needed only in the next step. TCP would
give both an equal share.
"""

from __future__ import annotations

import threading
from functools import partial

#: Seconds after which persistent tiles no longer wait for pieces of which none ends. A piece over 1 Gbit/s takes 0.03.
STALL_S = 0.05


class Precedence:
    """The pieces of temporary tiles that are under way to any node. Any thread may call any method."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = self._ended = 0
        self._is_stalled = False

    def begin(self) -> None:
        """Record that a piece of a temporary tile is under way."""
        with self._changed:
            self._under_way += 1

    def end(self) -> None:
        """Record that such a piece is over."""
        with self._changed:
            self._under_way -= 1
            self._ended += 1
            self._is_stalled = False
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait, before a piece of a persistent tile, while pieces of temporary tiles are under way and some of them end.

        A piece may wait for a place at the other node, and that place for a weight. So nobody waits long for pieces that stand
        still, nor again before one of them ends.
        """
        with self._changed:
            while self._under_way and not self._is_stalled:
                self._is_stalled = not self._changed.wait_for(partial(self._has_moved, self._ended), STALL_S)

    def _has_moved(self, ended: int) -> bool:
        return self._ended != ended
