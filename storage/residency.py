"""The residency of a tile in one tier: a named state, a table of the transitions that there are, and a log of them.

What a state says is what has been decided. Whether the bytes have arrived is what the events say that stand beside it:
whoever reads waits for the write, whoever writes, writes back or takes the slot waits for the write and all reads since.
Who changes it is storage/ledger.py, and why is decided above. Dask's worker state machine is the model: a transition that is
not in the table is refused, and the last ones are kept, so that a failure can be told from its beginning. Three may happen in
every state, since they come from outside the tier: OUTDATE, REPLACE and LOSE; of these the table refuses nothing. Nor is
`undo` in it: it takes a move back that was decided and not made, to whichever state the tile was in, and is only logged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from asynctile.storage.errors import AsynctileError
from asynctile.storage.slot import Slot
from asynctile.storage.tile import NEVER, Tile

#: Transitions that a ledger remembers.
REMEMBERED = 512
#: Events of readers that a residency keeps before it looks which are over.
MOST_READS = 32


class State(StrEnum):
    """Where the bytes of a tile are, seen from one tier."""

    ABSENT = "absent"
    """Neither here nor below: nobody has made them, or they are newer above, or lost."""
    STORED = "stored"
    """In the tier below alone: no slot here."""
    CLEAN = "clean"
    """In a slot here, and the same bytes below."""
    DIRTY = "dirty"
    """In a slot here: what may be below is older.

    Not always the newest of all: while the arena of RAM is undivided, nobody has to leave it, and the device does not say that
    it changes a tile. Its older bytes in RAM stay dirty, or clean, and become stale only where somebody may have to leave.
    """
    STALE = "stale"
    """In a slot, and old: the tier above has newer ones."""


ABSENT, STORED, CLEAN, DIRTY, STALE = State


@dataclass(frozen=True, eq=False, slots=True)
class Transition:
    """name: for the log. to: the state that follows each state in which it may happen."""

    name: str
    to: dict[State, State]


#: It gets a slot, and its bytes from below.
LOAD = Transition("load", {STORED: CLEAN})
#: It gets a slot, to be overwritten whole.
ALLOCATE = Transition("allocate", {ABSENT: DIRTY, STORED: DIRTY})
#: Its bytes here change.
WRITE = Transition("write", {CLEAN: DIRTY, DIRTY: DIRTY, STALE: DIRTY})
#: It leaves its slot, its bytes are copied below.
WRITE_BACK = Transition("write back", {DIRTY: STORED})
#: It leaves its slot without a copy: there is one below, or nobody wants the bytes.
LEAVE = Transition("leave", {CLEAN: STORED, DIRTY: ABSENT, STALE: ABSENT})
#: The tier above has changed it.
OUTDATE = Transition("outdate", {ABSENT: ABSENT, STORED: ABSENT, CLEAN: STALE, DIRTY: STALE, STALE: STALE})
#: The tier below has newer bytes: it has left its slot, if it had one.
REPLACE = Transition("replace", dict.fromkeys(State, STORED))
#: The copy below turned out to be lost, the one here is the only one.
KEEP = Transition("keep", {CLEAN: DIRTY, DIRTY: DIRTY})
#: Its bytes are gone, or wanted no more: it has left its slot, if it had one.
LOSE = Transition("lose", dict.fromkeys(State, ABSENT))

TRANSITIONS = (LOAD, ALLOCATE, WRITE, WRITE_BACK, LEAVE, OUTDATE, REPLACE, KEEP, LOSE)


class Residency:
    """One tile in one tier.

    slot: where it stands (`storage.slot.Slot`), None in the states without one. array: over the slot.
    backing: its place one tier below, None while it has none: its residency there, or a block of a file.
    next_use: position in program order at which it is read or updated next; NEVER for none.
    written: event of the last operation or copy that wrote it here; None: nothing pending. reads: events of the readers since.
    saved: event of the last copy into `backing`.
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
    """The last transitions of a tier, oldest first. count: of all that there were."""

    def __init__(self) -> None:
        self.count = 0
        #: three in a row for each: residency, transition, the state before. An undone move has the state after in place of
        #: a transition. Flat, since objects that live this long are what the garbage collector walks again and again.
        self._last: deque[Any] = deque(maxlen=3 * REMEMBERED)

    def change(self, residency: Residency, transition: Transition) -> None:
        """Make a transition; AsynctileError, and nothing changed, for one that does not exist."""
        old = residency.state
        try:
            residency.state = transition.to[old]
        except KeyError:
            what = f"cannot {transition.name}: expected it to be {' or '.join(transition.to)}"
            raise self.fault(residency, what) from None
        self.count += 1
        self._last.extend((residency, transition, old))

    def fault(self, residency: Residency, what: str) -> AsynctileError:
        """What to raise when the books contradict themselves."""
        return AsynctileError(
            f"tile {residency.tile.name} is {residency.state} and {what}; "
            f"this is a fault of asynctile, whose last steps were {'; '.join(self.tell(8))}"
        )

    def undo(self, residency: Residency, state: State) -> None:
        """To the state before a move that was decided and not made, or to one that was reached without the ledger."""
        self.count += 1
        self._last.extend((residency, state, residency.state))
        residency.state = state

    def tell(self, count: int = REMEMBERED) -> list[str]:
        """The last `count` transitions in words."""
        flat = list(self._last)[-3 * count :]
        return [_in_words(*flat[start : start + 3]) for start in range(0, len(flat), 3)]


def _in_words(residency: Residency, transition: Transition | State, old: State) -> str:
    if isinstance(transition, State):
        return f"{residency.name}: undo, {old} -> {transition}"
    return f"{residency.name}: {transition.name}, {old} -> {transition.to[old]}"
