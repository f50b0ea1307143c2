"""Which compute stream runs which operation: list scheduling on estimated costs, before anything runs.

Each operation goes to the stream on which it can start first, given when its inputs were written. The estimate only
has to rank streams; bits never depend on it, since operations order themselves by events.
"""

from __future__ import annotations

from asynctile.handle import Handle
from asynctile.operation import READ, Operation
from asynctile.program import Program

#: Rough rates of one CPU core, for ranking only.
FLOPS_PER_S = 200e9
BYTES_PER_S = 10e9
LAUNCH_S = 5e-6


def cost_s(operation: Operation) -> float:
    """Estimated seconds of one operation on one core."""
    return operation.flops / FLOPS_PER_S + operation.moved / BYTES_PER_S + LAUNCH_S


def assign(program: Program, lanes: int) -> list[int]:
    """A stream for each entry of `program` (0 for entries that are no operations)."""
    free_at = [0.0] * lanes
    written: dict[Handle, float] = {}
    read: dict[Handle, float] = {}
    chosen = []
    for entry in program.entries:
        if not isinstance(entry, Operation):
            chosen.append(0)
            continue
        ready = 0.0
        for tile, how in zip(entry.operands, entry.access, strict=True):
            ready = max(ready, written.get(tile, 0.0))
            if how != READ:
                ready = max(ready, read.get(tile, 0.0))
        lane = min(range(lanes), key=lambda index: (max(free_at[index], ready), -free_at[index]))
        end = max(free_at[lane], ready) + cost_s(entry)
        free_at[lane] = end
        for tile, how in zip(entry.operands, entry.access, strict=True):
            if how == READ:
                read[tile] = max(read.get(tile, 0.0), end)
            else:
                written[tile] = end
        chosen.append(lane)
    return chosen
