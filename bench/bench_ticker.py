"""How late does a caller's event loop wake while a model trains in the same process?

    python bench/bench_ticker.py [--rounds 9] [--steps 40] [--write]

A task on the caller's loop sleeps 1 ms again and again; its lag is the time between when it was due and when it ran. It runs
alone, and next to steps of the model of `make train`, on `cpu` and under its cap, by coroutines and played. As many threads
compute as there are cores. So a task that wakes up competes in the operating system's scheduler, which no engine can speed up,
and for the interpreter's lock, which an engine can leave alone. The second table gives milliseconds per step with the ticker,
the CPU time of all threads, and the CPU time of the caller's thread, which runs the ticker.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
from common import Table, arguments, in_turn, publish
from paired import CONFIDENCE, FEWEST, change
from small_model import CAPPED, CPU, MODEL, batches, open_trainer

PERIOD_S = 1e-3
NOTHING = "nothing"
#: Measured in addition to lag: milliseconds per step, CPU milliseconds per step of all threads and of the caller's thread.
FIGURES = ("ms", "CPU ms", "CPU ms, caller")


@asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """Yield the lags in milliseconds of every tick inside the block."""
    lags: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            lags.append((time.perf_counter() - due) * 1e3)

    task = asyncio.create_task(tick())
    try:
        yield lags
    finally:
        task.cancel()
        await asyncio.wait([task])


class Beside:
    """A side: ticks while a training makes some more steps. ticks: their number in all.

    Per measurement: lags, percentiles 50 and 99 in milliseconds; figures, FIGURES. Per step: played, whether it was played.
    """

    def __init__(self, steps: Any, count: int) -> None:
        self._steps = steps
        self._count = count
        self.forget()

    def forget(self) -> None:
        self.lags: list[tuple[float, float]] = []
        self.figures: list[tuple[float, ...]] = []
        self.played: list[bool] = []
        self.ticks = 0

    async def p99(self) -> float:
        async with ticking() as lags:
            began, used, here = time.perf_counter(), time.process_time(), time.thread_time()
            for _ in range(self._count):
                report = await anext(self._steps)
                self.played.append(report.played)
            spent = (time.perf_counter() - began, time.process_time() - used, time.thread_time() - here)
        self.ticks += len(lags)
        self.lags.append(tuple(np.percentile(lags, (50, 99))))
        self.figures.append(tuple(value / self._count * 1e3 for value in spent))
        return self.lags[-1][1]


async def pauses(seconds: float) -> AsyncIterator[Namespace]:
    """Yield pauses in place of steps, with the part of a report that is read."""
    while True:
        await asyncio.sleep(seconds)
        yield Namespace(played=False)


async def main() -> None:
    options = arguments(__doc__, rounds=9, steps=40)
    if options.rounds < FEWEST:
        raise SystemExit(f"--rounds {options.rounds} is too few for an interval of {CONFIDENCE:.0%}: give at least {FEWEST}")
    beside = {NOTHING: Beside(pauses(0.05), options.steps)}
    async with AsyncExitStack() as stack:
        for place in (CPU, CAPPED):
            for how, plays in (("by coroutines", False), ("played", True)):
                trainer = await open_trainer(stack, place)
                trainer.model.engine.plays = plays
                beside[f"{place}, {how}"] = Beside(trainer.run(batches()), options.steps)
        sides = {name: one.p99 for name, one in beside.items()}
        await in_turn(sides, 1)
        for one in beside.values():
            one.forget()
        await in_turn(sides, options.rounds)
    configuration = {
        "model": MODEL,
        "lag": f"of a sleep of {PERIOD_S * 1e3:g} ms, on asyncio's own loop",
        "repeats": f"median of {options.rounds} rounds of {options.steps} steps, its {CONFIDENCE:.0%} interval, sides in turn",
    }
    publish("bench_ticker", __doc__, configuration, results(beside), write=options.write)


def results(beside: Mapping[str, Beside]) -> list[Table]:
    lag = Table("lag of a tick, ms", ("beside", "p50", "from", "to", "p99", "from", "to", "ticks"))
    step = Table("a step beside the ticker", ("step", *FIGURES, "played"))
    for name, one in beside.items():
        middle, late = (change(values) for values in zip(*one.lags, strict=True))
        shown = (middle.median, middle.low, middle.high, late.median, late.low, late.high)
        lag.rows.append((name, *shown, one.ticks))
        if name != NOTHING:
            figures = [statistics.median(values) for values in zip(*one.figures, strict=True)]
            step.rows.append((name, *figures, sum(one.played) / len(one.played)))
    return [lag, step]


if __name__ == "__main__":
    asyncio.run(main())
