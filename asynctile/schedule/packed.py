"""The cursor of a run that is packed: it decides nothing, what moves and where to was worked out before (packing.py).

In the place of the cursor of cursor.py, for the tier in which operations run. A move that does not fit what stands in the tier
is a fault of the plan: it is refused before anything moves, since bytes of some other tile stand there.
"""

from __future__ import annotations

from collections.abc import Sequence

from asynctile.schedule.packing import Act, Packing, Planned
from asynctile.schedule.positions import FAR
from asynctile.storage.errors import AsynctileError
from asynctile.storage.ledger import Ledger
from asynctile.storage.move import Move
from asynctile.storage.residency import Residency
from asynctile.storage.tile import NEVER


class PackedCursor:
    """One job's way through the program of `packing`, `base` positions on, in the tier of `ledger`."""

    def __init__(self, ledger: Ledger, packing: Packing, base: int) -> None:
        self.ledger = ledger
        self.packing = packing
        self.base = base
        #: the first entry before which nothing was moved yet
        self._at = 0
        ledger.arena.expected.clear()  # what a run that broke off did not come to

    def rank_all(self) -> None:
        """Rank every tile that stays between runs by its first use in this job, which RAM below goes by when asked for it."""
        program = self.packing.program
        for tile in program.standing:
            first = program.first_uses.get(tile, NEVER)
            self.ledger.of(tile).next_use = self.base + first if first < NEVER else FAR

    def look_ahead(self, index: int, moves: list[Move]) -> None:
        """After entry `index` was issued, -1 for none: the moves before the next one, and where it will put what it makes.

        A second time nothing.
        """
        if index + 1 < self._at:
            return
        self._at = index + 2
        for planned in self.packing.moves[index + 1]:
            self._decide(planned, moves)
        for tile, offset in self.packing.births.get(index + 1, ()):
            self.ledger.expect(tile, offset)

    def turn_back(self, moves: Sequence[Move]) -> None:
        """Nothing: whatever comes next was told when it was planned."""

    def back_to(self, position: int) -> None:
        """Nothing, for the same reason."""

    def _decide(self, planned: Planned, moves: list[Move]) -> None:
        residency = self.ledger.of(planned.tile)
        if planned.act is Act.LEAVE:
            self._check(residency, planned, residency.slot is not None and residency.slot.offset == planned.offset)
            moves.append(self.ledger.evict(residency))
        elif planned.act is Act.COPY:
            self._check(residency, planned, residency.slot is not None)
            self.ledger.relocate(residency, planned.offset, moves)
        else:
            self._check(residency, planned, residency.slot is None)
            self.ledger.load_at(residency, planned.offset, moves)

    def _check(self, residency: Residency, planned: Planned, is_right: bool) -> None:
        if not is_right:
            slot = residency.slot
            stands = "stands nowhere here" if slot is None else f"stands at {slot.offset}"
            raise AsynctileError(
                f"program {self.packing.program.name} was to {planned.act.name.lower()} tile {residency.name} at byte "
                f"{planned.offset} of {self.ledger.arena.argument}, and it is {residency.state} and {stands}; this is a fault "
                "of asynctile"
            )
