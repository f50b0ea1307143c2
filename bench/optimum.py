"""Belady's MIN, written down once more without the engine: the yardstick for bytes moved."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import Any

from asynctile.program.operation import HOST, READ, Operation
from asynctile.program.program import Fetch, Program

#: What an operation of the host does to a tile that it writes: the bytes on the device are no good any more.
GONE = "gone"


def min_loads(program: Program, pools: list[tuple[int, int]]) -> int:
    """Bytes that the second of two steps must load, evicting what is used furthest away (Belady's MIN).

    pools: (slot bytes, slots). Shares no code with the engine: a trace of (tile, access), the positions of its uses, and
    one set of resident tiles a pool. What runs on the host needs nothing on the device.
    """
    trace: list[list[tuple[Any, str]]] = []
    for entry in program.entries:
        if isinstance(entry, Operation):
            touched = list(zip(entry.operands, entry.access, strict=True))
            trace.append([(tile, GONE) for tile, how in touched if how != READ] if entry.device == HOST else touched)
        else:
            trace.append([(entry.tile, "r")] if isinstance(entry, Fetch) else [])
    length, inputs = len(trace), set(program.inputs.values())
    uses: dict[Any, list[int]] = defaultdict(list)
    needs: dict[Any, list[bool]] = defaultdict(list)  # whether that use needs the bytes of before
    for position in range(2 * length):
        for tile, how in trace[position % length]:
            uses[tile].append(position)
            needs[tile].append(how not in ("w", GONE))

    def next_use(tile: Any, position: int) -> int:
        later = bisect_right(uses[tile], position)
        if later == len(uses[tile]) or not needs[tile][later]:
            return 3 * length
        found = uses[tile][later]
        again = found >= length > position  # a temporary is dead, an input is filled anew, in the next step
        return 3 * length if again and (tile in inputs or not tile.persistent) else found

    inside: list[set[Any]] = [set() for _ in pools]
    loaded = 0
    for position in range(2 * length):
        if position == length:
            for held in inside:
                held -= inputs
        needed = trace[position % length]
        operands = {tile for tile, _ in needed}
        for tile, how in needed:
            pool = next(index for index, (nbytes, _) in enumerate(pools) if tile.nbytes <= nbytes)
            held = inside[pool]
            if how == GONE:
                held.discard(tile)
            if tile in held or how == GONE:
                continue
            if len(held) >= pools[pool][1]:
                held.remove(max(held - operands, key=lambda item: next_use(item, position)))
            held.add(tile)
            loaded += tile.nbytes if how != "w" and position >= length else 0
        for tile in operands:
            if not tile.persistent and next_use(tile, position) == 3 * length:
                for held in inside:
                    held.discard(tile)
    return loaded
