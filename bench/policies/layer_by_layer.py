"""Layer by layer with two buffers, as SlideFormer (arXiv 2603.16428) and MegaTrain (arXiv 2604.05091) stream a model.

While a device computes one layer, the weights of the next one come; when a layer is done, everything of it leaves, needed soon
or not. So the device has two buffers, each as large as the largest layer with all that a visit uses. Activations and gradients
take the rest of the memory, and the one used longest ago leaves. Both systems update weights in RAM: give this policy a program
that does.
"""

from __future__ import annotations

from collections.abc import Iterator

from asynctile.program.operation import WRITE, Operation
from asynctile.program.program import Fetch, Mark, Program
from asynctile.schedule.schedule import Schedule
from asynctile.storage.tile import Tile
from policies.moves import IN_RAM, Moves, Task, access_of, node_of, tasks_of
from policies.room import Room

#: Buffers on a device.
BUFFERS = 2
#: The tiles that outlive a step of one visit to a layer, in order, and whether the visit reads their bytes.
Visit = dict[Tile, bool]


def layer_by_layer(program: Program, cap: int) -> Schedule:
    """Return a step in the steady state: the second of two. cap: bytes of each device. ValueError if the buffers exceed it."""
    return moves_by_layer(program, cap).schedule()


def moves_by_layer(program: Program, cap: int, steps: int = 2) -> Moves:
    """Return the moves of the last of so many steps in a row. The first finds all tiles in RAM."""
    visits = list(_visits(program))
    largest = max((sum(tile.nbytes for tile in visit) for own in visits for visit, _ in own), default=0)
    if BUFFERS * largest > cap:
        raise ValueError(f"{BUFFERS} buffers for a layer of {largest} bytes exceed {cap}")
    rooms = [Room(cap - BUFFERS * largest) for _ in visits] + [Room(BUFFERS * largest) for _ in visits]
    moves = _Streamed(program, rooms)
    for _ in range(steps):
        moves.begin()
        ahead = [_turns(own) for own in visits]
        left = [0] * len(visits)
        for entry in program.entries:
            if isinstance(entry, Mark):
                moves.mark(entry)
            elif isinstance(entry, Operation | Fetch):
                node = node_of(entry)
                if node != IN_RAM:
                    if not left[node]:
                        visit, following, left[node] = next(ahead[node])
                        moves.visit(node, visit, following)
                    left[node] -= 1
                moves.run(entry, node)
    return moves


class _Streamed(Moves):
    """Moves with two rooms for each device: one for activations, one for layers."""

    def room_of(self, tile: Tile, node: int) -> int:
        is_layer = tile.persistent and tile.name not in self.program.inputs
        return node + is_layer * (len(self.rooms) // 2)

    def visit(self, node: int, visit: Visit, following: Visit) -> None:
        """Free a buffer, then load what is missing of this layer and all of the following one."""
        number = node + len(self.rooms) // 2
        for tile in [tile for tile in self.recent[number] if tile not in visit]:
            self.evict(tile, node)
        for layer in (visit, following):
            for tile, is_read in layer.items():
                if is_read and self.missing(tile, node) and self.rooms[number].free >= tile.nbytes:
                    self.load(tile, node)


def _turns(visits: list[tuple[Visit, int]]) -> Iterator[tuple[Visit, Visit, int]]:
    """Yield each visit, the one behind it, and how many tasks the visit has. The next step follows the last one."""
    for number, (visit, tasks) in enumerate(visits):
        yield visit, visits[(number + 1) % len(visits)][0], tasks


def _visits(program: Program) -> Iterator[list[tuple[Visit, int]]]:
    """Yield, for each device, its visits to layers in order, each with its number of tasks."""
    for device in range(program.devices):
        visits: list[tuple[Visit, int]] = []
        layer: str | None = None
        for name, task in _layers(program):
            if node_of(task) == device:
                if name != layer:
                    layer = name
                    visits.append(({}, 0))
                visit, count = visits[-1]
                visits[-1] = (visit, count + 1)
                for tile, letters in access_of(task).items():
                    if tile.persistent and tile.name not in program.inputs:
                        visit.setdefault(tile, letters != WRITE)
        yield visits


def _layers(program: Program) -> Iterator[tuple[str, Task]]:
    """Yield the tasks with the name of their layer and of the part of the step."""
    sections, name = iter([*program.sections, (len(program), None)]), ""
    begins, section = next(sections)
    for position, task in tasks_of(program):
        while begins <= position:
            name = f"{section.phase} {section.name.partition(' rows')[0]}" if section else name
            begins, section = next(sections)
        yield name, task
