"""The residency of a tile in one tier: a named state, the table of allowed transitions, and a log of the last ones.

A state records what was decided. Whether the bytes have arrived is recorded by the events beside it: a reader waits for the
write; a writer, a write-back and the next owner of the slot wait for the write and all reads since. storage/ledger.py changes
residencies; the reasons come from above.

The model is dask's worker state machine. A transition that is not in the table is refused, and the last ones are kept, so that
a failure can be traced from its beginning. Two transitions are allowed in every state, because they come from outside the
tier: REPLACE and LOSE. `undo` is not in the table: it takes back a move that was decided but not made, returns to any
earlier state, and is only logged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from asynctile.storage.errors import AsynctileError
from asynctile.storage.slot import Slot
from asynctile.storage.tile import NEVER, Tile

#: The number of transitions that a ledger remembers.
REMEMBERED = 512
#: A residency keeps so many events of readers before it drops the finished ones.
MOST_READS = 32


class State(StrEnum):
    """Where the bytes of a tile are, seen from one tier."""

    ABSENT = "absent"
    """Neither here nor below: the bytes were never made, were lost, or are newer above."""
    STORED = "stored"
    """Only in the tier below: no slot here."""
    CLEAN = "clean"
    """In a slot here, and the same bytes below."""
    DIRTY = "dirty"
    """In a slot here; a copy below, if there is one, is older.

    Not always the newest bytes of all: a device does not report that it changes a tile, and the older bytes in RAM stay dirty,
    or clean.
    """


ABSENT, STORED, CLEAN, DIRTY = State


@dataclass(frozen=True, eq=False, slots=True)
class Transition:
    """One kind of transition. name: for the log. to: {state in which it is allowed: state that follows}."""

    name: str
    to: dict[State, State]


#: The tile gets a slot, and its bytes from below.
LOAD = Transition("load", {STORED: CLEAN})
#: The tile gets a slot, to be overwritten whole.
ALLOCATE = Transition("allocate", {ABSENT: DIRTY, STORED: DIRTY})
#: The tile's bytes here change.
WRITE = Transition("write", {CLEAN: DIRTY, DIRTY: DIRTY})
#: The tile leaves its slot, and its bytes are copied below.
WRITE_BACK = Transition("write back", {DIRTY: STORED})
#: The tile leaves its slot without a copy: there is one below, or the bytes are not needed.
LEAVE = Transition("leave", {CLEAN: STORED, DIRTY: ABSENT})
#: The tier below has newer bytes; the tile has left its slot, if it had one.
REPLACE = Transition("replace", dict.fromkeys(State, STORED))
#: The copy below was lost, so the bytes here are the only copy.
KEEP = Transition("keep", {CLEAN: DIRTY, DIRTY: DIRTY})
#: The tile's bytes are gone or no longer needed; the tile has left its slot, if it had one.
LOSE = Transition("lose", dict.fromkeys(State, ABSENT))

TRANSITIONS = (LOAD, ALLOCATE, WRITE, WRITE_BACK, LEAVE, REPLACE, KEEP, LOSE)


class Residency:
    """The state of one tile in one tier.

    slot: the slot it stands in, None in the states without one. array: a view of that slot.
    backing: its place one tier below, either its residency there or a block of a file; None while it has none.
    next_use: position in program order at which the tile is read or updated next; NEVER for none.
    written: event of the last operation or copy that wrote the tile here; None: nothing pending.
    reads: events of its readers since then. saved: event of the last copy into `backing`.
    """

    __slots__ = ("tile", "state", "slot", "array", "backing", "next_use", "written", "reads", "saved")

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.state = ABSENT
        self.slot: Slot | None = None
        self.array: Any = None
        self.backing: Any = None
        self.next_use = NEVER
        self.written: Any = None
        self.reads: list[Any] = []
        self.saved: Any = None

    @property
    def name(self) -> str:
        return self.tile.name

    def __repr__(self) -> str:
        return f"<{self.tile.name} {self.state}{'' if self.slot is None else f' in slot {self.slot.index}'}>"


class History:
    """The last REMEMBERED transitions of a tier, oldest first. count: the number of all transitions so far."""

    def __init__(self) -> None:
        self.count = 0
        #: three items for each: residency, transition, state before. For `undo` the state after replaces the transition. Flat,
        #: because the garbage collector walks objects that live this long again and again.
        self._last: deque[Any] = deque(maxlen=3 * REMEMBERED)

    def change(self, residency: Residency, transition: Transition) -> None:
        """Make a transition; AsynctileError, and nothing changed, if the state does not allow it."""
        old = residency.state
        try:
            residency.state = transition.to[old]
        except KeyError:
            what = f"cannot {transition.name}; expected it to be {' or '.join(transition.to)}"
            raise self.fault(residency, what) from None
        self.count += 1
        self._last.extend((residency, transition, old))

    def fault(self, residency: Residency, what: str) -> AsynctileError:
        """Return the error for bookkeeping that contradicts itself."""
        return AsynctileError(
            f"tile {residency.tile.name} is {residency.state} and {what}; "
            f"this is a bug in asynctile, whose last steps were {'; '.join(self.tell(8))}"
        )

    def undo(self, residency: Residency, state: State) -> None:
        """Set `state` outside the table: the state before a move that was not made, or a state reached without the ledger."""
        self.count += 1
        self._last.extend((residency, state, residency.state))
        residency.state = state

    def tell(self, count: int = REMEMBERED) -> list[str]:
        """Return the last `count` transitions as sentences."""
        flat = list(self._last)[-3 * count :]
        return [_in_words(*flat[start : start + 3]) for start in range(0, len(flat), 3)]


def _in_words(residency: Residency, transition: Transition | State, old: State) -> str:
    if isinstance(transition, State):
        return f"{residency.name}: undo, {old} -> {transition}"
    return f"{residency.name}: {transition.name}, {old} -> {transition.to[old]}"
