"""The stages of prefetch: coroutines that bring tiles in ahead of a job, from the file to RAM and from RAM to the device.

A job steps its stages after each of its operations, in program order, the upper first: what RAM is asked for now comes before
what it will be asked for. A stage waits while too many bytes are on their way, and for the stage below; and while it waits its
job waits. So what the two decide remains a pure function of the program: no clock decides how far ahead a tile is loaded or
which one leaves for it. The decisions are those of a cursor (asynctile/schedule/cursor.py), which a plan makes as well.
"""

from __future__ import annotations

from asynctile.memory.tier import Tier
from asynctile.schedule.cursor import Cursor
from asynctile.storage.move import Move


class Stage:
    """Into `tier`, as the cursor of one job says. below: the stage that feeds it, None for the lowest."""

    def __init__(self, tier: Tier, cursor: Cursor, below: Stage | None) -> None:
        self.tier = tier
        self.cursor = cursor
        self.below = below

    async def step(self, index: int) -> None:
        """Entry `index` was issued, -1 for none: start the transfers of what comes next, as deep as the prefetch goes."""
        run_ahead = self.tier.run_ahead
        if run_ahead.is_full_of_bytes():
            await run_ahead.room()
        moves: list[Move] = []
        try:
            self.cursor.look_ahead(index, moves)
        finally:
            if moves:
                self.tier.carry_out(moves)
        if self.below is not None:
            await self.below.step(index)
