"""Trainings that run for a while, each at its own pace, and the number of steps each makes in a window of time.

For bench_shares.py and bench_tokens.py.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

from asynctile.layers import Trainer


class Steps:
    """The steps of one training on the same batch. ends: when it began, and when each step ended, by time.perf_counter."""

    def __init__(self, trainer: Trainer, inputs: tuple[Any, Any]) -> None:
        self.trainer = trainer
        self.ends: list[float] = []
        self._inputs = inputs

    async def run(self, stop: asyncio.Event) -> None:
        """Make one step after another, at least two, until the step in which `stop` is set has ended."""
        self.ends = [time.perf_counter()]
        while not stop.is_set() or len(self.ends) < 3:
            await self.trainer.step(*self._inputs)
            self.ends.append(time.perf_counter())

    def rate(self, begin: float, end: float) -> float:
        """Return steps a second from `begin` to `end`. Of a step that crosses a limit, only the part inside counts."""
        done = np.interp((begin, end), self.ends, range(len(self.ends)))
        return float((done[1] - done[0]) / (end - begin))


async def rates(trainings: list[Steps], seconds: float) -> list[float]:
    """Return steps a second of each training, all at the same time."""
    stop = asyncio.Event()
    begin = time.perf_counter()
    tasks = [asyncio.create_task(training.run(stop)) for training in trainings]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    stop.set()
    end = time.perf_counter()
    for task in tasks:
        await task
    return [training.rate(begin, end) for training in trainings]
