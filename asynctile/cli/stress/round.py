"""One round of a scenario: its seed, its folder, its engines, and the checks that every engine must pass.

Covers `Round` and how seeds follow from each other. The scenario's file says what a round does, conductor.py when it runs.
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
from asynctile.share import runtime_of
from asynctile.streams.stall import describe

__all__ = ["WATCHDOG_S", "Round", "seed_after"]

#: An engine in which nothing moves for this long is hung. No operation here takes a hundredth of it.
WATCHDOG_S = 15.0


def seed_after(seed: int, index: int) -> int:
    """Return the seed of round `index` of a run with `seed`.

    The first is the run's own seed, so any round can be the first of another run.
    """
    if index == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed} {index}".encode(), digest_size=5).digest(), "big")


class Round:
    """One round: a scenario, its seed and its surroundings.

    chance: source of all randomness in the round. folder: an empty one of its own, removed afterwards. course: the undisturbed
    training, shared by all rounds of a run, because it costs as much as a round.
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
        """Return a description of the work that the round's engine is doing, for a round that hangs."""
        if self._engine is None:
            return "no engine is open"
        return describe(runtime_of(self._engine).tiers.streams(), patience_s)

    @asynccontextmanager
    async def engine(self, place: EngineSetup, **more: Any) -> AsyncIterator[StressEngine]:
        """Open an engine in `place`. Its user releases every tile; Finding if anything is left after closing."""
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
                raise Finding("failed", f"{retries} transfers had to be repeated, but no fault was planned: the disk failed, "
                                        "or another process used the memory")
        self._engine = None
        await asyncio.sleep(0)  # finished tasks leave the loop's list
        before.expect_no_more(self.spill)
