"""The edges of a schedule: for each byte of a memory, the entry that wrote it last and the entries that have read it since.

Pure. Entries are ascending numbers. Nobody waits for bytes that were there before the first entry.
"""

from __future__ import annotations

from bisect import bisect_right, insort

from asynctile.schedule.schedule import NOBODY


class Segment:
    """Bytes up to `end` that have the same users.

    writer: of all these bytes, NOBODY if none. readers: since that write, oldest first.
    """

    __slots__ = ("end", "writer", "readers")

    def __init__(self, end: float, writer: int = NOBODY, readers: list[int] | None = None) -> None:
        self.end = end
        self.writer = writer
        self.readers = [] if readers is None else readers


class ByteUsers:
    """The users of each byte of one memory, kept in segments of bytes with the same users."""

    def __init__(self) -> None:
        #: starts of the segments, ascending
        self._starts = [0]
        self._segments = {0: Segment(float("inf"))}

    def read(self, begin: int, end: int, entry: int, waits: set[int]) -> None:
        """Record that `entry` reads these bytes; add the entries that wrote them to `waits`."""
        for start in self._within(begin, end):
            segment = self._segments[start]
            segment.readers.append(entry)
            if segment.writer != NOBODY:
                waits.add(segment.writer)

    def write(self, begin: int, end: int, entry: int, after: set[int]) -> None:
        """Record that `entry` overwrites these bytes; add to `after` the last users of each byte, which must be over before."""
        starts = self._within(begin, end)
        for start in starts:
            segment = self._segments[start]
            if segment.readers:
                after.update(segment.readers)
            elif segment.writer != NOBODY:
                after.add(segment.writer)
        if len(starts) > 1:
            first = bisect_right(self._starts, begin)
            del self._starts[first : first + len(starts) - 1]
            for start in starts[1:]:
                del self._segments[start]
        self._segments[begin] = Segment(end, entry)

    def _within(self, begin: int, end: int) -> list[int]:
        """Return the starts of the segments that make up these bytes; segments that stick out are cut."""
        segment = self._segments.get(begin)
        if segment is not None and segment.end == end:
            return [begin]
        self._cut(begin)
        self._cut(end)
        first = bisect_right(self._starts, begin) - 1
        return self._starts[first : bisect_right(self._starts, end - 1)]

    def _cut(self, at: int) -> None:
        if at in self._segments:
            return
        segment = self._segments[self._starts[bisect_right(self._starts, at) - 1]]
        self._segments[at] = Segment(segment.end, segment.writer, list(segment.readers))
        segment.end = at
        insort(self._starts, at)
