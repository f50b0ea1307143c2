"""The order of entries of several devices that work at the same time: side by side, as they will run. Pure.

Layers record one replica after the other. In that order a device would be done with a weight before the next device needs it.
Woven, all devices need a weight at about the same place in the order. So one of them loads it from RAM, and the others get it
from there. Devices take turns in going first, so each loads its part.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from asynctile.program.operation import HOST, READ
from asynctile.program.program import Mark, Program
from asynctile.storage.tile import Tile


def woven(program: Program, devices: Sequence[int], positions: Sequence[int]) -> Iterator[int]:
    """Yield `positions`, some entries of the program in an order, in their woven order.

    The entries of one device keep their order, and so do two entries of which one writes a tile of the other. Work of the host
    stays behind the entry before it. Marks stay where they are. devices: of each entry; ignored for marks and work of the host.
    """
    begin = 0
    for index, position in enumerate(positions):
        if isinstance(program.entries[position], Mark):
            yield from _between(program, devices, positions[begin:index])
            yield position
            begin = index + 1
    yield from _between(program, devices, positions[begin:])


def _between(program: Program, devices: Sequence[int], positions: Sequence[int]) -> Iterator[int]:
    """Weave entries between two marks, in as many rounds as the device with the fewest has entries.

    In each round each device does its part, and another one goes first.
    """
    queues: dict[int, deque[int]] = defaultdict(deque)
    homes: dict[int, int] = {}
    device = 0
    for position in positions:
        device = homes[position] = device if program.entries[position].device == HOST else devices[position]
        queues[device].append(position)
    left, behind = _waits(program, positions)
    counts = {queue: len(own) for queue, own in queues.items()}
    places = {queue: place for place, queue in enumerate(queues)}
    rounds = min(counts.values(), default=0)
    #: the queues whose first entry waits for nothing, by their turns
    ready: list[tuple[int, int, int, int]] = []

    def offer(queue: int) -> None:
        if queues[queue] and not left[queues[queue][0]]:
            number = (counts[queue] - len(queues[queue])) * rounds // counts[queue]
            heapq.heappush(ready, (number, (queue - number) % len(queues), places[queue], queue))

    for queue in queues:
        offer(queue)
    while ready:
        queue = heapq.heappop(ready)[-1]
        yield (position := queues[queue][0])
        for later in behind.pop(position, ()):
            left[later] -= 1
            if not left[later] and queues[homes[later]][0] == later:
                offer(homes[later])
        queues[queue].popleft()
        offer(queue)


def _waits(program: Program, positions: Sequence[int]) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return for each entry how many of the others come before it, and the entries that come behind it.

    An entry comes behind another one if it uses what that writes, or writes what that uses.
    """
    left: dict[int, int] = {}
    behind: dict[int, list[int]] = defaultdict(list)
    writer: dict[Tile, int] = {}
    readers: dict[Tile, set[int]] = defaultdict(set)
    for position in positions:
        before = set[int]()
        entry = program.entries[position]
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            if tile in writer:
                before.add(writer[tile])
            if how != READ:
                before |= readers.pop(tile, set())
                writer[tile] = position
            else:
                readers[tile].add(position)
        before.discard(position)
        left[position] = len(before)
        for earlier in before:
            behind[earlier].append(position)
    return left, behind
