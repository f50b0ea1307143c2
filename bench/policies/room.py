"""The memory of one device, as the rival policies see it: bytes without addresses, which nothing fragments.

Who takes bytes learns what must end first: the entries that used these bytes before. So no order that a schedule's edges allow
exceeds the cap.
"""

from __future__ import annotations

from collections import deque


class Room:
    """`cap` bytes. used, peak: bytes that tiles take, now and at most."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.used = self.peak = 0
        #: free bytes in the order in which they became free, with the entries that must be over first
        self._free: deque[tuple[int, tuple[int, ...]]] = deque([(cap, ())])

    @property
    def free(self) -> int:
        return self.cap - self.used

    def take(self, nbytes: int) -> set[int]:
        """Take the bytes that have been free for longest; return the entries that must be over first."""
        if nbytes > self.free:
            raise ValueError(f"{nbytes} bytes were asked for, {self.free} are free")
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        after: set[int] = set()
        while nbytes:
            there, entries = self._free.popleft()
            after.update(entries)
            if there > nbytes:
                self._free.appendleft((there - nbytes, entries))
            nbytes -= min(nbytes, there)
        return after

    def give(self, nbytes: int, after: set[int]) -> None:
        """Give bytes back, to be used once the entries in `after` are over."""
        self.used -= nbytes
        self._free.append((nbytes, tuple(after)))

    def begin(self) -> None:
        """Forget the entries of the step before."""
        self._free = deque([(self.free, ())])
