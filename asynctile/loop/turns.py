"""Turns between the shares of an engine, and within a share between its texts and its other jobs.

Covers the clock and the gates: which share has a job, and which shares are held back now. The decisions are made by a
pure ledger, asynctile/schedule/turns.py.

If only one share has a job, it has the device for itself: no gate is shut and no timer runs. If several have one, the
ledger is asked at the beginning and end of each job, and every millisecond between; it says whose operations may begin.
Only the start of work depends on a clock here, never which bytes move where. All of it runs on the device's loop.
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

#: Seconds between two looks. A share that has nothing to compute keeps the others waiting for so long.
LOOK_S = 0.001


class Turn(Party):
    """A share's part in the turns, with the gate of `tiers`.

    allowance: how long its texts may keep the share from other jobs.
    """

    def __init__(self, tiers: Tiers, weight: float, *, interactive: bool = False) -> None:
        super().__init__(weight, interactive=interactive)
        self.tiers = tiers
        self.allowance = Allowance()

    @property
    def level(self) -> int:
        """Level of the share's gate."""
        return self.tiers.gate.level

    def let(self, level: int) -> None:
        """Set the level of the share's gate, and of its player, which may have been replaced since the last time."""
        self.tiers.gate.set(level)
        if self.tiers.player is not None:
            self.tiers.player.hold(level != OPEN, level == CLOSED)

    def has_work(self, streams: Sequence[Runner]) -> bool:
        """Return whether an operation of the share runs or is ready, and so needs a turn.

        For an interactive share copies count, too. A device that orders its own work does not say which share it
        belongs to: there, everything that was enqueued counts.
        """
        tiers, copies = self.tiers, self.interactive
        if tiers.gate.is_awaited or (tiers.player is not None and tiers.player.has_work(copies)):
            return True
        own = [stream for stream in streams if isinstance(stream, Stream)]
        if len(own) < len(streams) and tiers.run_ahead.is_behind:
            return True
        return any(stream.has_work(tiers.gate, copies) for stream in own)


class Turns:
    """The turns of one engine. streams: returns those of its device. clock: returns seconds that only grow."""

    def __init__(self, streams: Callable[[], Sequence[Runner]], clock: Callable[[], float] = time.monotonic) -> None:
        self.ledger = TurnLedger()
        self._streams = streams
        self.clock = clock
        self._turns: dict[Turn, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    @asynccontextmanager
    async def held(self, busy: Exclusive, turn: Turn) -> AsyncIterator[None]:
        """Hold `busy`, the lock that every job of a share takes. A job that begins inside the block ends with it.

        The time counts for the allowance of the share's texts.
        """
        async with self._held(busy, turn):
            began = self.clock()
            try:
                yield
            finally:
                turn.allowance.earn(self.clock() - began)

    @asynccontextmanager
    async def rounds(self, busy: Exclusive, turn: Turn) -> AsyncIterator[Callable[[bool], bool]]:
        """Hold `busy` for texts, which are computed in rounds.

        Yields a function to call after each round, with whether the round gave a token. It returns whether the texts
        keep `busy` for one more round.
        """

        def go_on(wrote: bool) -> bool:
            return turn.allowance.goes_on(self.clock(), wrote=wrote, others_wait=busy.waiting > 0)

        async with self._held(busy, turn):
            turn.allowance.begin(self.clock())
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
        """Begin a job inside `held`; the share's job before it is over.

        Work enqueued in this context belongs to the new job.
        """
        GATE.set(turn.tiers.gate)
        if not self._is_over:
            now = self.clock()
            if turn in self._turns:
                self.ledger.end(turn, now)
            self.ledger.begin(turn, now)
            self._turns[turn] = None
            self._look()

    def renew(self, turn: Turn) -> None:
        """Set the level again, since the share may have got a player."""
        if turn in self._turns:
            turn.let(turn.level)

    def end(self, turn: Turn) -> None:
        """End the share's job, if there is one: it holds back no other share any more, and nothing holds it back."""
        if turn in self._turns:
            del self._turns[turn]
            self.ledger.end(turn, self.clock())
            turn.let(OPEN)
            self._look()

    def close(self) -> None:
        """Let every share go on, because the engine closes."""
        self._is_over = True
        for turn in list(self._turns):
            self.end(turn)

    def _look(self) -> None:
        """Decide and set the gates. Look again soon if several shares have jobs, since one might have to wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        streams = self._streams()
        self.ledger.decide(self.clock(), lambda party: isinstance(party, Turn) and party.has_work(streams))
        levels = {turn: self._level(turn) for turn in self._turns}
        for turn in sorted(levels, key=lambda turn: -levels[turn]):  # shares that must stop come first
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
