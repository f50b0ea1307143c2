"""The program's own order and devices under LRU: nothing is known of later uses.

Loads may run ahead of operations as far as the cap allows, because the tile that leaves is the one used longest ago.
"""

from __future__ import annotations

from asynctile.program.operation import Operation
from asynctile.program.program import Fetch, Mark, Program
from asynctile.schedule.schedule import Schedule
from policies.moves import Moves, node_of
from policies.room import Room


def least_recent(program: Program, cap: int) -> Schedule:
    """Return a step in the steady state: the second of two. cap: bytes of each device."""
    return moves_by_recency(program, cap).schedule()


def moves_by_recency(program: Program, cap: int, steps: int = 2) -> Moves:
    """Return the moves of the last of so many steps in a row. The first finds all tiles in RAM."""
    moves = Moves(program, [Room(cap) for _ in range(program.devices)])
    for _ in range(steps):
        moves.begin()
        for entry in program.entries:
            if isinstance(entry, Mark):
                moves.mark(entry)
            elif isinstance(entry, Operation | Fetch):
                moves.run(entry, node_of(entry))
    return moves
