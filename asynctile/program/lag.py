"""The order of a program over several devices in which no device waits for the others where it can compute meanwhile. Pure.

A device that adds up what others have computed waits for them, and for two passages over links. So such entries, and those that
need their results, come later than they were recorded: among the same device's entries of the next part of the step. Entries
that touch the same tile keep their order where one of them writes it, so no result changes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise

from asynctile.program.operation import HOST, READ
from asynctile.program.program import Entry, Mark, Program
from asynctile.storage.tile import Tile


def lagging(program: Program, devices: Sequence[int], begins: Sequence[int]) -> list[int]:
    """Return the positions of all entries in their new order.

    devices: of each entry; ignored for marks and work of the host. begins: where the parts of the step begin.
    """
    return list(_Lag(program.entries, devices).order([0, *begins, len(program)]))


class _Lag:
    """One pass through a program. writers: the device that wrote each tile last, if it is no persistent one.

    late: by device, the entries that lag, and those of the part before, which are due in this one.
    """

    def __init__(self, entries: Sequence[Entry], devices: Sequence[int]) -> None:
        self.entries = entries
        self.devices = devices
        self.writers: dict[Tile, int] = {}
        self.late: dict[int, deque[int]] = defaultdict(deque)
        self.due: dict[int, deque[int]] = defaultdict(deque)
        #: by tile, the device among whose late entries one writes it or reads it
        self.written: dict[Tile, int] = {}
        self.read: dict[Tile, int] = {}

    def order(self, bounds: Sequence[int]) -> Iterator[int]:
        for begin, end in pairwise(bounds):
            yield from self._part(begin, end)
        yield from self._flush()

    def _part(self, begin: int, end: int) -> Iterator[int]:
        """Yield the entries of one part that do not lag, and those due among them, evenly."""
        self.due, self.late = self.late, defaultdict(deque)
        count, passed, total = self._counts(begin, end), defaultdict[int, int](int), {d: len(q) for d, q in self.due.items()}
        for position in range(begin, end):
            entry = self.entries[position]
            if isinstance(entry, Mark):
                yield from self._flush()
            elif (queue := self._queue(position, entry)) is not None:
                self._hold(position, entry, queue)
                continue
            yield position
            if isinstance(entry, Mark) or entry.device == HOST:
                continue
            device = self.devices[position]
            passed[device] += 1
            queue_of_device = self.due[device]
            while queue_of_device and (total[device] - len(queue_of_device) + 1) * count[device] <= passed[device] * total[device]:
                yield queue_of_device.popleft()
        yield from self._all(self.due)

    def _counts(self, begin: int, end: int) -> dict[int, int]:
        found = defaultdict[int, int](int)
        for position in range(begin, end):
            found[self.devices[position]] += 1
        return found

    def _queue(self, position: int, entry: Entry) -> int | None:
        """Return the device among whose late entries this one belongs; None if it does not lag."""
        device = self.devices[position]
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            if tile in self.written:
                return self.written[tile]
            if how != READ and tile in self.read:
                return self.read[tile]
        if entry.device != HOST and any(self.writers.get(tile, device) != device for tile in entry.tiles):
            return device
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            if how != READ and not tile.persistent:
                self.writers[tile] = device
        return None

    def _hold(self, position: int, entry: Entry, queue: int) -> None:
        self.late[queue].append(position)
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            (self.read if how == READ else self.written)[tile] = queue

    def _flush(self) -> Iterator[int]:
        """Yield all entries that are held."""
        yield from self._all(self.due)
        yield from self._all(self.late)
        self.written.clear()
        self.read.clear()

    def _all(self, queues: dict[int, deque[int]]) -> Iterator[int]:
        yield from sorted(position for queue in queues.values() for position in queue)
        queues.clear()
