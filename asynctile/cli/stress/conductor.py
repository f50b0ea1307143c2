"""The order of rounds: scenarios take turns by their share of the time, beside processes that play the others (partner.py).

A round is one try of a scenario with a seed of its own (round.py). Covers `Conductor`: turns, seeds, deadlines, and the
consequences of a failed round. A scenario's file says what its rounds do.
"""

from __future__ import annotations

import asyncio
import faulthandler
import shutil
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from asynctile.cli.stress import cancel, crawl, faults, programs, thrash, threads, train, truncate
from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.models import Course
from asynctile.cli.stress.partner import PROGRAMS, Ended, Partner
from asynctile.cli.stress.round import Round, seed_after
from asynctile.cli.stress.settings import StressSettings
from asynctile.cli.stress.tally import Failure, Tally
from asynctile.errors import StalledError

__all__ = ["Conductor"]

#: A round takes a second at most. A round that takes this long hangs where the engine's watchdog does not look.
DEADLINE_S = 120.0
#: Plays a round, by scenario.
PLAYS: dict[str, Callable[[Round], Awaitable[bool]]] = {
    "random": programs.play, "thrash": thrash.play, "train": train.play, "faults": faults.play, "cancel": cancel.play,
    "truncate": truncate.play, "crawl": crawl.play, "threads": threads.play,
}  # fmt: skip
#: Share of each scenario that takes turns in their common time.
_SHARES = {
    "random": 0.4, "thrash": 0.05, "train": 0.1, "faults": 0.2, "cancel": 0.07, "truncate": 0.04, "crawl": 0.06,
    "threads": 0.05,
}  # fmt: skip
#: Share of all time that each process may take beside others.
_SHARE_BESIDE = 0.2


class Conductor:
    """Plays rounds of all scenarios.

    stopped: asked before each round. hung: whether a round is stuck for good, and the process with it.
    """

    def __init__(self, settings: StressSettings, folder: Path, tally: Tally, stopped: Callable[[], bool]) -> None:
        self.settings = settings
        self.folder = folder
        self.tally = tally
        self.hung = False
        self._stopped = stopped
        self._course = Course()
        self._played = dict.fromkeys(settings.scenarios, 0)
        self._over: set[str] = set()
        self._began_s = time.monotonic()

    async def run(self) -> None:
        """Play until the time is over, every scenario has had its rounds, or `stopped` says so."""
        async with AsyncExitStack() as stack:
            partners = {name: Partner(words, self.folder / name) for name, words in PROGRAMS.items() if name in self._played}
            for partner in partners.values():
                await stack.enter_async_context(partner)
            tasks = {name: asyncio.create_task(self._play_beside(name, partner)) for name, partner in partners.items()}
            try:
                await self._take_turns()
                while left := [task for name, task in tasks.items() if not task.done() and not self._is_left(name)]:
                    await asyncio.wait(left, timeout=0.1)
            finally:
                for task in tasks.values():
                    task.cancel()
                await asyncio.gather(*tasks.values(), return_exceptions=True)
        for task in tasks.values():
            if not task.cancelled():
                task.result()

    def _goes_on(self, name: str) -> bool:
        """Return whether a scenario has another round; each has at least one, however short the time."""
        if self._stopped() or self.hung or name in self._over:
            return False
        settings, played = self.settings, self._played[name]
        if settings.rounds is not None and played >= settings.rounds:
            return False
        if settings.cancellations is not None and self.tally.cancellations >= settings.cancellations:
            return False
        return not played or not self._is_late()

    def _is_left(self, name: str) -> bool:
        """Return whether not to wait for a kill in progress: nobody counts on it, and it may take a while."""
        return self._stopped() or self.hung or (self._is_late() and self.tally.rounds[name] > 0)

    def _is_late(self) -> bool:
        return self.settings.minutes is not None and self._elapsed_s() >= self.settings.minutes * 60

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    async def _take_turns(self) -> None:
        """Play the scenario that has had the least of its share, again and again."""
        while names := [name for name in self._played if name in PLAYS and self._goes_on(name)]:
            await self._play(min(names, key=lambda name: self.tally.seconds[name] / _SHARES[name]))

    async def _play(self, name: str) -> None:
        seed = self._next_seed(name)
        folder = self.folder / f"{name}-{seed}"
        folder.mkdir()
        began_s = time.monotonic()
        round = Round(name, seed, folder, self.tally, self._course)
        task = asyncio.create_task(self._judge(round))
        faulthandler.dump_traceback_later(2 * DEADLINE_S, exit=True, file=sys.__stderr__ or sys.stderr)  # for a stuck loop
        # Not a timeout, which would cancel: a hung task may also hang in its cancellation.
        done, _ = await asyncio.wait([task], timeout=DEADLINE_S)
        faulthandler.cancel_dump_traceback_later()
        self.tally.seconds[name] += time.monotonic() - began_s
        if not done:
            self.hung = True
            faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
            sentence = f"the round did not end within {DEADLINE_S:g} s; {round.describe(DEADLINE_S)}"
            self._fail(name, seed, Finding("hung", sentence))
            return
        task.result()
        shutil.rmtree(folder)

    async def _judge(self, round: Round) -> None:
        """Play a round, and count it and its failure. Errors of the round are not raised."""
        try:
            counts = await PLAYS[round.scenario](round)
        except Finding as finding:
            self._fail(round.scenario, round.seed, finding)
        except StalledError as error:
            self._fail(round.scenario, round.seed, Finding("hung", str(error)))
        except Exception as error:
            self._fail(round.scenario, round.seed, Finding("failed", _in_words(error)))
        else:
            if not counts:
                self.tally.void += 1
                return
        self.tally.rounds[round.scenario] += 1

    async def _play_beside(self, name: str, partner: Partner) -> None:
        """Play rounds in another process while there are any; beside other scenarios, leave them most of the machine."""
        while self._goes_on(name):
            seed = self._next_seed(name)
            began_s = time.monotonic()
            try:
                await partner.play(seed, self.tally)
            except Finding as finding:
                self._fail(name, seed, finding)
            self.tally.rounds[name] += 1
            self.tally.seconds[name] += time.monotonic() - began_s
            if len(self._played) > 1 and self.settings.minutes is not None:
                await asyncio.sleep(self.tally.seconds[name] / _SHARE_BESIDE - self._elapsed_s())

    def _next_seed(self, name: str) -> int:
        seed = seed_after(self.settings.seed, self._played[name])
        self._played[name] += 1
        return seed

    def _fail(self, name: str, seed: int, finding: Finding) -> None:
        """Count a failure. A scenario whose process has ended is over."""
        if isinstance(finding, Ended):
            self._over.add(name)
        self.tally.lost_bytes += finding.nbytes
        self.tally.failures.append(Failure(name, seed, finding.kind, " ".join(str(finding).split())))


def _in_words(error: BaseException) -> str:
    """Return the type, text and place of an error; of a group, those of each of its errors."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_in_words(one) for one in error.exceptions)
    *_, frame = traceback.extract_tb(error.__traceback__) or (None,)
    where = "" if frame is None else f" ({Path(frame.filename).name}, line {frame.lineno})"
    return f"{type(error).__name__}: {error}{where}"
