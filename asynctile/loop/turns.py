"""Turns between the shares of an engine: who has a job, a clock, and the gates that hold back the others. And within a share,
between its texts and its other jobs.

One share with a job has the device for itself: no gate is shut and no timer runs. With several, the ledger is asked at the
begin and the end of each job, and every millisecond between (asynctile/schedule/turns.py): it says whose operations may begin.
Only when work begins depends on a clock here; what moves where does not. All of it on the device's loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from asynctile.loop.exclusive import Exclusive
from asynctile.memory.tiers import Tiers
from asynctile.schedule.allowance import Allowance
from asynctile.schedule.turns import Party, TurnLedger
from asynctile.streams.event import Runner
from asynctile.streams.gate import CLOSED, COPIES, GATE, OPEN
from asynctile.streams.stream import Stream

#: Seconds after which is looked again; a share that has nothing to compute keeps the others waiting for so long.
LOOK_S = 0.001


class Turn(Party):
    """The part that a share takes in turns, with the gate of `tiers`. allowance: of its texts."""

    def __init__(self, tiers: Tiers, weight: float, *, interactive: bool = False) -> None:
        super().__init__(weight, interactive=interactive)
        self.tiers = tiers
        self.allowance = Allowance()

    @property
    def level(self) -> int:
        """That of its gate."""
        return self.tiers.gate.level

    def let(self, level: int) -> None:
        """Set its gate; the player's as well, which may be another than the last time."""
        self.tiers.gate.set(level)
        if self.tiers.player is not None:
            self.tiers.player.hold(level != OPEN, level == CLOSED)

    def has_work(self, streams: Sequence[Runner]) -> bool:
        """Whether something of it runs or is ready that needs a turn: operations; of an interactive one copies, too.

        A device that orders its own work does not say whose that is: there it is all that was enqueued.
        """
        tiers, copies = self.tiers, self.interactive
        if tiers.gate.is_awaited or (tiers.player is not None and tiers.player.has_work(copies)):
            return True
        own = [stream for stream in streams if isinstance(stream, Stream)]
        if len(own) < len(streams) and tiers.run_ahead.is_behind:
            return True
        return any(stream.has_work(tiers.gate, copies) for stream in own)


class Turns:
    """Those of one engine. streams: of its device. clock: seconds that only grow."""

    def __init__(self, streams: Callable[[], Sequence[Runner]], clock: Callable[[], float] = time.monotonic) -> None:
        self.ledger = TurnLedger()
        self._streams = streams
        self._clock = clock
        self._turns: dict[Turn, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    @asynccontextmanager
    async def held(self, busy: Exclusive, turn: Turn) -> AsyncIterator[None]:
        """Hold `busy`, which every job of a share does; a job that begins inside of it ends with it."""
        async with self._held(busy, turn):
            began = self._clock()
            try:
                yield
            finally:
                turn.allowance.earn(self._clock() - began)

    @asynccontextmanager
    async def rounds(self, busy: Exclusive, turn: Turn) -> AsyncIterator[Callable[[bool], bool]]:
        """`held` for texts. Behind each round the function that this gives says whether they hold `busy` for one more; it is
        told whether the round gave a token.
        """

        def go_on(wrote: bool) -> bool:
            return turn.allowance.goes_on(self._clock(), wrote=wrote, others_wait=busy.waiting > 0)

        async with self._held(busy, turn):
            turn.allowance.begin(self._clock())
            yield go_on

    @asynccontextmanager
    async def _held(self, busy: Exclusive, turn: Turn) -> AsyncIterator[None]:
        async with busy.held():
            before = GATE.get()
            try:
                yield
            finally:
                GATE.set(before)
                self.end(turn)

    def begin(self, turn: Turn) -> None:
        """Inside of `held`: a job begins, and the one before it is over. What is enqueued in this context is its own."""
        GATE.set(turn.tiers.gate)
        if not self._is_over:
            now = self._clock()
            if turn in self._turns:
                self.ledger.end(turn, now)
            self.ledger.begin(turn, now)
            self._turns[turn] = None
            self._look()

    def renew(self, turn: Turn) -> None:
        """It may have got a player."""
        if turn in self._turns:
            turn.let(turn.level)

    def end(self, turn: Turn) -> None:
        """That job is over, if there was one: its share holds back nobody, and nothing holds it back."""
        if turn in self._turns:
            del self._turns[turn]
            self.ledger.end(turn, self._clock())
            turn.let(OPEN)
            self._look()

    def close(self) -> None:
        """The engine is to be closed: nobody is held back any more."""
        self._is_over = True
        for turn in list(self._turns):
            self.end(turn)

    def _look(self) -> None:
        """Decide, set the gates, and look again soon if anybody might have to wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        streams = self._streams()
        self.ledger.decide(self._clock(), lambda party: isinstance(party, Turn) and party.has_work(streams))
        levels = {turn: self._level(turn) for turn in self._turns}
        for turn in sorted(levels, key=lambda turn: -levels[turn]):  # who has to stop comes first
            if turn.level != levels[turn]:
                turn.let(levels[turn])
        for stream in streams:
            if isinstance(stream, Stream):
                stream.gates_changed()
        if len(self._turns) > 1:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _level(self, turn: Turn) -> int:
        if self.ledger.may_compute(turn):
            return OPEN
        return COPIES if self.ledger.may_copy(turn) else CLOSED
