"""The pipeline: walks a program ahead of compute and says what must move, before each operation and ahead of others.

Pure decisions over storage/residency.py, no events and no bytes: asynctile/memory/tier.py carries them out, on
a dry device for asynctile/measure/simulate.py. So a plan and a run cannot disagree.

How far ahead is counted in slots, since slots are what it costs: half of them hold tiles that were loaded before their
use, half are kept free behind it. The free half matters as much. The tile used furthest away is often the one used last;
a load into its slot would wait for that very use and then for its write-back. So victims leave early, and their slots
age before they are filled.

Depth 0 is not another path: nothing is loaded ahead, and the tier lets each load wait for the work before it (turns.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from asynctile.program.handle import Handle
from asynctile.program.operation import HOST, READ, WRITE
from asynctile.program.program import Entry, Program
from asynctile.storage.demand import Demand
from asynctile.storage.residency import Ledger, Move
from asynctile.storage.tile import NEVER, Tile

#: Tiles loaded ahead, and slots kept free, for each unit of prefetch depth: over a link, and from a disk, which answers late.
LINK_WINDOW = (4, 4)
DISK_WINDOW = (16, 16)
#: The most of both, as a share of the slots.
SHARE = 1 / 8
#: Entries that the cursor looks at ahead of the issue: where nothing is missing it would walk to the end at once.
HORIZON = 512
#: Far enough for any program; what is used outside a program ranks behind it, longest unused first.
FAR = 1 << 60


class Order:
    """Positions in program order, shared by the tiers of an engine; they never repeat.

    base: position of the running program's first entry. position: of what was issued last, or of the end of the last run.
    """

    def __init__(self) -> None:
        self.base = 0
        self.position = 0

    def begin(self) -> None:
        self.base = self.position = self.position + 1

    def end(self, length: int) -> None:
        """A run is over; positions go on behind it, where the `next_uses` of its persistent tiles point."""
        self.position = self.base + length - 1


class Pipeline:
    """Order of use for the ledger of one tier, and the prefetch cursor.

    depth: prefetch, in units of `window`: tiles loaded ahead and slots kept free; both at most SHARE of the slots.
    """

    def __init__(self, ledger: Ledger, order: Order, depth: int, window: tuple[int, int] = LINK_WINDOW) -> None:
        self.ledger = ledger
        self.order = order
        self.depth = depth
        self.window = window
        self._program: Program | None = None
        self._cursor = 0
        self._reserve = 0
        self._most_ahead = 0
        #: a position for each tile that was loaded ahead of the issue
        self._ahead: deque[int] = deque()
        #: tiles that an entry between the issue and the cursor overwrites: bytes of them below are old
        self._overwritten: set[Tile] = set()

    def begin(self, program: Program, demand: Demand) -> None:
        """A run of `program` starts: what it uses first is known for every tile on the device."""
        self._large = self.ledger.arena.pools[-1]
        self._most_ahead = self._slots(self.window[0])
        # Where everything fits nothing need leave early.
        self._reserve = 0 if self.ledger.arena.holds(demand) else self._slots(self.window[1])
        self._cursor = 0
        self._ahead.clear()
        self._overwritten.clear()
        if program is not self._program:
            self._program = program
            for tile in self.ledger.resident:
                self._rank(tile, program)

    def _rank(self, tile: Any, program: Program) -> None:
        """The first use of a resident tile in a run that begins."""
        first = program.first_uses.get(tile, FAR)
        self.ledger.used(tile, self.order.base + first if first < FAR else FAR, False)

    def _missing(self, tile: Any) -> Any:
        """What would have to be loaded here before an operation can use a tile that is not on the device; None if nothing."""
        return tile if tile.slot is None else None

    def _slots(self, unit: int) -> int:
        """`unit` slots for each unit of depth, but no more than a fair share of the arena, and one if any."""
        slots, limit = unit * self.depth, self._large.limit
        if limit is None:
            return slots
        return min(slots, max(min(self.depth, 1), int(limit * SHARE * unit / sum(self.window))))

    def end(self) -> None:
        """The run is over."""
        self._cursor = NEVER

    def forget(self) -> None:
        """A run was broken off: what its tiles were to be used for next is no longer true."""
        self.end()
        self._program = None

    def admit(self, tiles: Sequence[Handle], access: str, moves: list[Move]) -> None:
        """Moves that make `tiles` resident for the entry about to be issued."""
        before = len(moves)
        try:
            self.ledger.admit(tiles, access, moves)
        finally:
            if len(moves) > before:
                self._turn_back(moves[before:])

    def look_ahead(self, index: int, moves: list[Move]) -> None:
        """After entry `index` was issued: moves that free slots and bring in what the next operations miss."""
        program = self._program
        ahead = self._ahead
        self._keep_free(moves)
        if program is not None and self._overwritten:
            self._overwritten.difference_update(program.entries[index].tiles)
        while ahead and ahead[0] <= index:
            ahead.popleft()
        if program is None or self.ledger.backing is None or len(ahead) >= self._most_ahead:
            return
        entries = program.entries
        cursor = max(self._cursor, index + 1)
        stop = min(len(entries), index + HORIZON)
        while cursor < stop and len(ahead) < self._most_ahead:
            entry = entries[cursor]
            loaded = self._bring(entry, self.order.base + cursor, moves)
            if loaded < 0:
                break
            ahead.extend([cursor] * loaded)
            cursor += 1
        self._cursor = cursor

    def _keep_free(self, moves: list[Move]) -> None:
        """Let tiles leave early so that the reserve of free slots is whole."""
        pool = self._large
        free = pool.free
        if free is None:
            return
        while free < self._reserve and self.ledger.evict_ahead(pool, self.order.base + self._cursor, moves):
            free += 1

    def _bring(self, entry: Entry, needed_at: int, moves: list[Move]) -> int:
        """Number of tiles loaded for one entry ahead; -1 when there is no room for one."""
        count, on_host = 0, entry.place == HOST
        for operand, how in zip(entry.tiles, entry.access, strict=True):
            # An operation of the host needs in RAM what stands on the device, unless it has changed there and comes down.
            if (operand.slot is not None and not on_host) or (tile := self._missing(operand)) is None:
                continue
            if how == WRITE:
                self._overwritten.add(operand)
            elif tile.valid_below and operand not in self._overwritten:
                if not self.ledger.prefetch(tile, needed_at, moves):
                    return -1
                tile.next_use = needed_at
                self.ledger.used(tile, needed_at, False)
                count += 1
        return count

    def _turn_back(self, moves: list[Move]) -> None:
        """Something the cursor has passed was evicted: go back to where it is used."""
        for move in moves:
            if move.tile.slot is None:
                self.back_to(move.tile.next_use)

    def back_to(self, position: int) -> None:
        """What is used at `position` is not here, or not any more: the cursor must not have passed it."""
        use = position - self.order.base
        if use < self._cursor:
            self._cursor = use
            while self._ahead and self._ahead[-1] >= use:
                self._ahead.pop()


class DevicePipeline(Pipeline):
    """The pipeline of a device over RAM, where operations of the host use tiles that then need not be on the device."""

    def _bring(self, entry: Entry, needed_at: int, moves: list[Move]) -> int:
        if entry.place != HOST:
            return super()._bring(entry, needed_at, moves)
        self._overwritten.update(tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ)
        return 0


class HostPipeline(Pipeline):
    """The pipeline of RAM between a device and a disk: its tiles are copies, the program knows their owners."""

    def _rank(self, tile: Any, program: Program) -> None:
        owner = tile.owner
        if owner.slot is None or not owner.dirty:  # else the copy is old, and ranks last
            first = program.first_uses.get(owner, FAR)
            self.ledger.used(tile, self.order.base + first if first < FAR else FAR, False)

    def _missing(self, tile: Any) -> Any:
        copy = tile.backing
        return copy if copy is not None and copy.slot is None else None
