"""The order of entries of several devices that work at the same time: side by side, as they will run. Pure.

Layers record one replica after the other. In that order a device would be done with a weight before the next device needs it.
Woven, all devices need a weight at about the same place in the order. So one of them loads it from RAM, and the others get it
from there. Devices take turns in going first, so each loads its part.
"""

from __future__ import annotations

from collections import defaultdict
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
    queues: dict[int, list[int]] = defaultdict(list)
    device = 0
    for position in positions:
        device = device if program.entries[position].device == HOST else devices[position]
        queues[device].append(position)
    waits, done, taken = _waits(program, positions), set[int](), dict.fromkeys(queues, 0)
    rounds = min(map(len, queues.values()), default=0)

    def turn(queue: int) -> tuple[int, int]:
        number = taken[queue] * rounds // len(queues[queue])
        return number, (queue - number) % len(queues)

    for _ in positions:
        heads = (queue for queue, count in taken.items() if count < len(queues[queue]))
        queue = min((queue for queue in heads if waits[queues[queue][taken[queue]]] <= done), key=turn)
        yield (position := queues[queue][taken[queue]])
        taken[queue] += 1
        done.add(position)


def _waits(program: Program, positions: Sequence[int]) -> dict[int, set[int]]:
    """Return, for each entry, those of the others that come before it: it uses what they write, or writes what they use."""
    found: dict[int, set[int]] = {}
    writer: dict[Tile, int] = {}
    readers: dict[Tile, set[int]] = defaultdict(set)
    for position in positions:
        before = found[position] = set()
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
    return found
