"""The order of a program in which no device waits for another one while it can compute. Pure.

A device that adds up what others have computed waits for them, and then for two copies over links. Such entries lag: they and
the entries that need their results come later than they were recorded, among the same device's entries of the next part of the
step. Entries keep their order where one of them writes a tile of the other, so no result changes.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise

from asynctile.program.operation import HOST, READ
from asynctile.program.program import Entry, Mark, Program
from asynctile.storage.tile import Tile

#: Positions of entries, in order, by the device among whose entries they come.
Queues = dict[int, deque[int]]


def lagging(program: Program, devices: Sequence[int], begins: Sequence[int]) -> Iterator[list[int]]:
    """Yield the positions of all entries in their new order, part by part.

    devices: of each entry; ignored for marks and work of the host. begins: where the parts of the step begin, ascending.
    """
    return _Lag(program, devices).order([0, *begins, len(program)])


class _Lag:
    """One pass through a program.

    writers: the device that wrote each temporary tile last. late: entries that lag. due: those of the part before, which come
    in this part. written, read: the queues of the entries held that write or read a tile.
    """

    def __init__(self, program: Program, devices: Sequence[int]) -> None:
        self.program = program
        self.devices = devices
        self.writers: dict[Tile, int] = {}
        self.late: Queues = defaultdict(deque)
        self.due: Queues = defaultdict(deque)
        self.written: dict[Tile, set[int]] = defaultdict(set)
        self.read: dict[Tile, set[int]] = defaultdict(set)

    def order(self, bounds: Sequence[int]) -> Iterator[list[int]]:
        for begin, end in pairwise(bounds):
            yield list(self._part(range(begin, end)))
        yield list(self._flush())

    def _part(self, positions: range) -> Iterator[int]:
        """Yield the entries of one part that do not lag, and the entries due among those of their device, evenly."""
        self.due, self.late = self.late, defaultdict(deque)
        own = Counter(self.devices[position] for position in positions)
        due = {device: len(queue) for device, queue in self.due.items()}
        passed = Counter[int]()
        for position in positions:
            entry = self.program.entries[position]
            if self._is_barrier(entry):
                yield from self._flush()
            if self._lags(position, entry):
                continue
            yield position
            device = self.devices[position]
            passed[device] += 1
            waiting = self.due[device]
            while waiting and (due[device] - len(waiting) + 1) * own[device] <= passed[device] * due[device]:
                yield waiting.popleft()
        yield from _emptied(self.due)

    def _is_barrier(self, entry: Entry) -> bool:
        """Return whether everything held comes before this entry: the host looks there, or it waits for several devices."""
        if isinstance(entry, Mark):
            return bool(self.program.rewritten[entry.name])
        return len(self._queues(entry)) > 1

    def _lags(self, position: int, entry: Entry) -> bool:
        """Return whether the entry at `position` lags; if so, hold it."""
        queues = self._queues(entry)
        if not queues and not self._waits_for_others(position, entry):
            if entry.device != HOST:
                written = (tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ)
                self.writers.update((tile, self.devices[position]) for tile in written if not tile.persistent)
            return False
        queue = queues.pop() if queues else self.devices[position]
        self.late[queue].append(position)
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            (self.read if how == READ else self.written)[tile].add(queue)
        return True

    def _queues(self, entry: Entry) -> set[int]:
        """Return the devices among whose entries those come that are held and must come before this entry."""
        found = set[int]()
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            found |= self.written.get(tile, set())
            if how != READ:
                found |= self.read.get(tile, set())
        return found

    def _waits_for_others(self, position: int, entry: Entry) -> bool:
        device = self.devices[position]
        return entry.device != HOST and any(self.writers.get(tile, device) != device for tile in entry.tiles)

    def _flush(self) -> Iterator[int]:
        """Yield all entries that are held."""
        yield from _emptied(self.due)
        yield from _emptied(self.late)
        self.written.clear()
        self.read.clear()


def _emptied(queues: Queues) -> list[int]:
    """Empty the queues; return what they held, in the order of the program."""
    found = sorted(position for queue in queues.values() for position in queue)
    queues.clear()
    return found
