"""The tables of a walk: its input, and the state that it changes on its way through a program (stays.py, packer.py).

Tiles, offsets, bytes and positions are plain numbers; tiles are numbered as in `Uses`. Nothing is computed here. Compiled
functions get the address of the STATE and find all tables through it: they compile five times as fast as with arrays for
arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.jit import inline
from asynctile.kernels.cpu.records import record_at
from asynctile.schedule.uses import ENTRY, USE, Uses
from asynctile.storage.tile import NEVER

#: The number of equal parts of a tier whose times the clock tracks.
PARTS = 4096
#: GAPS: the most gaps that the clock remembers for each way of a link. LAST_GAPS: when a gap is added at the end, all but the
#: last LAST_GAPS are dropped.
GAPS, LAST_GAPS = 256, 32
#: The most loads ahead of their entries that are counted at once.
BROUGHT = 1 << 12
#: The number of cheapest windows that are examined before the search gives up.
WINDOWS = 24

#: Integers of the STATE. cap, ahead, slack: see `Walk`. has_link, has_places: flags; keeps: some tiles must stand at the end.
#: large: the least bytes of a large tile. entry: the entry that the walk is at, or just before. used: bytes that stand, peak:
#: the most so far. loaded, written, copied: bytes from below, to below, within the tier. brought: bytes loaded for entries
#: ahead; first, last: the range of their ring. looked: entries before this one need no further look ahead. stamp: marks the
#: tiles that are held and placed now. Then the lengths of tables (moves counts also moves without room). faults: tiles that
#: were to be placed on bytes that are taken.
_NUMBERS = (
    "cap", "ahead", "slack", "has_link", "has_places", "keeps", "large", "entry", "used", "peak", "loaded", "written", "copied",
    "brought", "first", "last", "looked", "stamp", "entries", "tiles", "leaving", "leaving_room", "standing", "holes", "homes",
    "windows", "moves", "moves_room", "faults",
)  # fmt: skip
#: Addresses of tables. entries, uses: as in `Uses`. tiles: TILE. leaving: (rank, tile), a heap with the tile needed furthest
#: ahead first, with stale entries; behind `leaving_room` are entries set aside. brought: (entry, bytes), a ring. moves: MOVE.
#: homes: (tile, 0), the tiles with a home. standing: (offset, tile), ascending. holes: (offset, bytes), ascending, no two
#: adjacent. Scratch tables of a search for a place: parts: (offset, bytes) of holes, windows: (bytes that move, offset),
#: moving: (tile, offset).
#: free: SECONDS, by part. ways: WAY, up and down. gaps: GAP, GAPS for each way.
_TABLES = (
    "entries_at", "uses_at", "tiles_at", "leaving_at", "brought_at", "moves_at", "homes_at", "standing_at", "holes_at",
    "parts_at", "windows_at", "moving_at", "free_at", "ways_at", "gaps_at",
)  # fmt: skip
#: The state of a walk. part: bytes of each of the clock's PARTS. time_s: when all compute so far is over. *_per_s: rates.
STATE = np.dtype([
    *((name, np.int64) for name in (*_NUMBERS, *_TABLES, "part")),
    *((name, np.float64) for name in ("time_s", "link_per_s", "memory_per_s")),
], align=True)  # fmt: skip
#: One tile. size: nbytes rounded up to the alignment. again: the position of its next use. since: the entry at which it came.
#: overwritten: the last entry, among those looked at ahead, that overwrites it. held, placed: stamps. came: `since` in the run
#: before. home: its offset when the run ends; at: its offset now. -1 means none. written_s, used_s, below_s: when its bytes are
#: written here, when all its uses here are over, when its bytes are written below. dirty: the copy below is older. kept: it
#: must stand when the run ends. clean: its copy below must be as new then.
TILE = np.dtype([
    *((name, np.int64) for name in ("nbytes", "size", "again", "since", "overwritten", "held", "placed", "came", "home", "at")),
    *((name, np.float64) for name in ("written_s", "used_s", "below_s")),
    *((name, np.bool_) for name in ("stands", "dirty", "kept", "clean")),
], align=True)  # fmt: skip
PAIR = np.dtype([("key", np.int64), ("value", np.int64)])
MOVE = np.dtype([(name, np.int64) for name in ("entry", "act", "tile", "offset")])
SECONDS = np.dtype([("at_s", np.float64)])
GAP = np.dtype([("begin_s", np.float64), ("end_s", np.float64)])
#: One way of the link. gaps: how many are remembered. end_s: when the way is free for good.
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
    """Return pair `number` of a table of pairs."""
    return record_at(table, number, PAIR)


class WalkState:
    """The tables of a walk through `uses` in an empty tier of `cap` bytes, by name, and the memory behind them.

    moves: the number of moves that the table has room for. state (1,): the STATE.
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
        """Set fields of the state by name."""
        for name, value in values.items():
            self.state[name] = value

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tables[name]

    @property
    def address(self) -> int:
        """The address of the state."""
        return self.state.ctypes.data
