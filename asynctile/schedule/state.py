"""The tables of a walk: what it goes by, and what it changes as it goes through a program (stays.py, packer.py).

Tiles are numbers, as `Uses` counts them; so are offsets, bytes and positions. Nothing here computes. Compiled functions get
the address of the STATE, and find all else by it: they compile five times as fast as with arrays for arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.jit import inline
from asynctile.kernels.cpu.records import record_at
from asynctile.schedule.uses import ENTRY, USE, Uses
from asynctile.storage.tile import NEVER

#: Places of a tier that the clock tells apart, each of as many bytes.
PARTS = 4096
#: Gaps of each way of a link that the clock remembers; of its last ones, when it must choose.
GAPS, LAST_GAPS = 256, 32
#: Loads ahead of their entries that are counted at once.
BROUGHT = 1 << 12
#: Of the cheapest windows, how many are looked at more closely before it is said that there is none.
WINDOWS = 24

#: cap, ahead, slack: see `Walk`; has_link, has_places: whether it has; keeps: whether some must stand at the end. large:
#: bytes of tiles that are. entry: the one before which it is, or at which. used: bytes that stand. loaded, written, copied:
#: from below, to it, within the tier. brought: bytes that came for entries ahead, [first, last) of their ring. looked:
#: entries before that need no further look. stamp: of who is held now, and placed. Then how many there are of each; of moves
#: also those for which there was no room. faults: tiles that were to stand where somebody does.
_NUMBERS = (
    "cap", "ahead", "slack", "has_link", "has_places", "keeps", "large", "entry", "used", "peak", "loaded", "written", "copied",
    "brought", "first", "last", "looked", "stamp", "entries", "tiles", "leaving", "leaving_room", "standing", "holes", "homes",
    "windows", "moves", "moves_room", "faults",
)  # fmt: skip
#: Tables. entries, uses: as in `Uses`. tiles: TILE. leaving: (rank, tile), a heap, who is needed furthest ahead first, with
#: stale entries; behind `leaving_room` those set aside. brought: (entry, bytes), a ring. moves: MOVE. homes: (tile, 0).
#: standing: (offset, tile), ascending. holes: (offset, bytes), ascending, no two side by side. parts: (offset, bytes) of
#: holes, windows: (bytes that move, offset), moving: (tile, offset), as one place is looked for. free: SECONDS, by part.
#: ways, up and down: WAY. gaps: GAP, those of each way together.
_TABLES = (
    "entries_at", "uses_at", "tiles_at", "leaving_at", "brought_at", "moves_at", "homes_at", "standing_at", "holes_at",
    "parts_at", "windows_at", "moving_at", "free_at", "ways_at", "gaps_at",
)  # fmt: skip
#: part: bytes of a place, as the clock counts. time_s: when all that was computed so far is over. Then bytes a second.
STATE = np.dtype([
    *((name, np.int64) for name in (*_NUMBERS, *_TABLES, "part")),
    *((name, np.float64) for name in ("time_s", "link_per_s", "memory_per_s")),
], align=True)  # fmt: skip
#: Of a tile. size: nbytes rounded up to the alignment. again: the position of its next use. since: where it came.
#: overwritten: the last entry of those looked at that does so. held, placed: stamps. came: since, in the run before. home:
#: its offset between two runs; at: where it is. -1 is none. When its bytes are written here, all that uses it here is over,
#: its bytes below are written. dirty: what is below is older. kept: it must stand when the run ends.
TILE = np.dtype([
    *((name, np.int64) for name in ("nbytes", "size", "again", "since", "overwritten", "held", "placed", "came", "home", "at")),
    *((name, np.float64) for name in ("written_s", "used_s", "below_s")),
    *((name, np.bool_) for name in ("stands", "dirty", "kept")),
], align=True)  # fmt: skip
PAIR = np.dtype([("key", np.int64), ("value", np.int64)])
MOVE = np.dtype([(name, np.int64) for name in ("entry", "act", "tile", "offset")])
SECONDS = np.dtype([("at_s", np.float64)])
GAP = np.dtype([("begin_s", np.float64), ("end_s", np.float64)])
#: Of a way of the link: gaps that are remembered, and when it is free for good.
WAY = np.dtype([("gaps", np.int64), ("end_s", np.float64)])


@inline()
def state_at(address: int) -> Any:
    return record_at(address, 0, STATE)


@inline()
def entry_at(s: Any, number: int) -> Any:
    return record_at(s.entries_at, number, ENTRY)


@inline()
def use_at(s: Any, number: int) -> Any:
    return record_at(s.uses_at, number, USE)


@inline()
def tile_at(s: Any, number: int) -> Any:
    return record_at(s.tiles_at, number, TILE)


@inline()
def pair_at(table: int, number: int) -> Any:
    """Of one of the tables of pairs."""
    return record_at(table, number, PAIR)


class WalkState:
    """Those of an empty tier of `cap` bytes, for a walk through `uses`, by name; and the memory that they take.

    moves: for how many there is room. state (1,): the STATE.
    """

    def __init__(self, uses: Uses, cap: int, moves: int) -> None:
        count = len(uses.tiles)
        leaving = 4 * count + 64
        tiles, holes = np.zeros(count, TILE), np.zeros(count + 2, PAIR)
        tiles["nbytes"], tiles["size"], tiles["again"] = uses.nbytes, uses.sizes, NEVER
        for name in ("since", "overwritten", "came", "home", "at"):
            tiles[name] = -1
        holes["value"][0] = cap
        self._tables = {
            "entries": uses.entries, "uses": uses.uses, "tiles": tiles, "leaving": np.empty(2 * leaving, PAIR),
            "brought": np.empty(BROUGHT, PAIR), "moves": np.empty(moves, MOVE), "homes": np.zeros(count, PAIR),
            "standing": np.zeros(count, PAIR), "holes": holes, "parts": np.empty(2 * count + 4, PAIR),
            "windows": np.empty(WINDOWS, PAIR), "moving": np.empty(count, PAIR), "free": np.zeros(PARTS + 1, SECONDS),
            "ways": np.zeros(2, WAY), "gaps": np.empty(2 * GAPS, GAP),
        }  # fmt: skip
        self.state = np.zeros(1, STATE)
        self.set(
            cap=cap, has_link=uses.has_link, large=uses.sizes.max(initial=0) // 4, entries=len(uses.entries) - 2, tiles=count,
            leaving_room=leaving, holes=1, moves_room=moves, part=max(1, -(-cap // PARTS)), link_per_s=uses.pace.link_per_s,
            memory_per_s=uses.pace.memory_per_s, **{f"{name}_at": table.ctypes.data for name, table in self._tables.items()},
        )  # fmt: skip

    def set(self, **values: float) -> None:
        """Numbers of the state."""
        for name, value in values.items():
            self.state[name] = value

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tables[name]

    @property
    def address(self) -> int:
        """Of the state."""
        return self.state.ctypes.data
