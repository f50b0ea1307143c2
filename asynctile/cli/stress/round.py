"""One round of a scenario: its seed, its folder, its engines, and the checks that every engine has to pass.

Covers `Round` and how seeds follow from each other. What a round does is its scenario's file, when it runs conductor.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.leaks import Held, expect_empty
from asynctile.cli.stress.models import Course
from asynctile.cli.stress.place import EngineSetup, StressEngine
from asynctile.cli.stress.tally import Tally
from asynctile.streams.stall import describe

__all__ = ["WATCHDOG_S", "Round", "seed_after"]

#: An engine in which nothing moves for so long is hung. Nothing here takes a hundredth of it.
WATCHDOG_S = 15.0


def seed_after(seed: int, index: int) -> int:
    """The seed of round `index` of a run with `seed`. The first is the run's own, so any round can be the first of another."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed} {index}".encode(), digest_size=5).digest(), "big")


class Round:
    """chance: all that is random in the round comes from it. folder: an empty one of its own, removed afterwards.

    course: of the undisturbed training, shared by all rounds of a run; it costs as much as a round.
    """

    def __init__(self, scenario: str, seed: int, folder: Path, tally: Tally, course: Course) -> None:
        self.scenario = scenario
        self.seed = seed
        self.folder = folder
        self.tally = tally
        self.course = course
        self.chance = random.Random(f"{scenario} {seed}")
        self.spill = folder / "spill"
        self._engine: StressEngine | None = None

    def describe(self, patience_s: float) -> str:
        """What the round's engine is at, for one that hangs."""
        if self._engine is None:
            return "it has no engine open"
        return describe(self._engine.tiers.device.streams(), patience_s)

    @asynccontextmanager
    async def engine(self, place: EngineSetup, **more: Any) -> AsyncIterator[StressEngine]:
        """An engine in `place`. Its user releases every tile; Finding if anything is left when it is closed."""
        self.spill.mkdir(exist_ok=True)
        before = Held.now(self.spill)
        engine = StressEngine(place, self.spill, **{"watchdog": WATCHDOG_S, **more})
        async with engine:
            self._engine = engine
            try:
                yield engine
            finally:
                self.tally.add(engine.statistics())
            expect_empty(engine)
            if retries := engine.statistics().spill_retries if "wrap_spill" not in more else 0:
                raise Finding("failed", f"{retries} transfers had to be repeated though no fault was planned: the disk failed, "
                                        "or somebody used the memory meanwhile")
        self._engine = None
        await asyncio.sleep(0)  # tasks that have ended leave the loop's list
        before.expect_no_more(self.spill)
