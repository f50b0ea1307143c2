"""How do two trainings on one engine share its time, and how much is lost between them?

    python bench/bench_shares.py [--rounds 5] [--seconds 5] [--batch 12] [--write]

The model of `make train`, float32, on shares of one engine on `cpu`: one training alone, two of equal weight at the same time,
and two with weights 3 and 1. All make the same step, so steps a second measure what each training gets. Targets: two equal
trainings get 45 to 55% each, and together at least 0.95 of one alone; with weights 3 and 1 the first gets 70 to 80%.

    python bench/bench_shares.py --against TREE [--starts 9] [--rounds 2] [--seconds 2]

Milliseconds per step, all trainings together, of another commit's package and of this one in turn (bench/against.py). Target:
no loss that the interval shows.
"""

from __future__ import annotations

import asyncio
import statistics
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from against import compare
from common import Side, Table, arguments, batch, in_turn, publish, target
from small_model import LENGTH, SHAPE
from window import Steps, rates

from asynctile import Engine
from asynctile.layers import GPT2, AdamW, Trainer

ALONE = "alone"
#: Weights of two trainings, and the range for the first one's part.
PAIRS = {"1 and 1": ((1.0, 1.0), (0.45, 0.55)), "3 and 1": ((3.0, 1.0), (0.70, 0.80))}
#: The least that two trainings do together, relative to one alone.
TOGETHER = 0.95
#: RAM of each share: far more than its tiles, and less than a part of the engine's.
MEMORY = "256MiB"


class Together:
    """A side: trainings that run at the same time. got: steps a second of each, one list per measurement."""

    def __init__(self, trainings: list[Steps], seconds: float) -> None:
        self.got: list[list[float]] = []
        self._trainings = trainings
        self._seconds = seconds

    async def rate(self) -> float:
        """Return the steps a second of all trainings together."""
        self.got.append(await rates(self._trainings, self._seconds))
        return sum(self.got[-1])

    async def ms(self) -> float:
        """Return the milliseconds of a step, of whichever training."""
        return 1e3 / await self.rate()


async def open_training(stack: AsyncExitStack, engine: Engine, weight: float, size: int) -> Steps:
    share = await stack.enter_async_context(engine.share(host_memory=MEMORY, weight=weight))
    return Steps(Trainer(await GPT2.create(share, SHAPE, seed=1), AdamW(lr=1e-4)), batch(SHAPE, size, LENGTH))


@asynccontextmanager
async def trainings(options: Namespace) -> AsyncIterator[dict[str, Together]]:
    """Open all trainings on one engine, by the names of their sides, each warmed up."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine("cpu"))
        found: dict[str, list[Steps]] = {ALONE: [await open_training(stack, engine, 1.0, options.batch)]}
        for name, (weights, _) in PAIRS.items():
            found[name] = [await open_training(stack, engine, weight, options.batch) for weight in weights]
        for those in found.values():
            await rates(those, 0.0)  # programs are recorded and scheduled
        yield {name: Together(those, options.seconds) for name, those in found.items()}


@asynccontextmanager
async def opened(options: Namespace) -> AsyncIterator[dict[str, Side]]:
    """Yield the sides that a process of --against measures."""
    async with trainings(options) as together:
        yield {name: one.ms for name, one in together.items()}


async def main() -> None:
    options = arguments(__doc__, {"starts": 9, "rounds": 2, "seconds": 2.0}, rounds=5, seconds=5.0, batch=12)
    model = {"model": f"GPT-2, {SHAPE.summary}, T {LENGTH}, B {options.batch}, float32, on cpu"}
    if options.against:
        await compare("bench_shares", __doc__, options, "ms", {}, model)
        return
    async with trainings(options) as together:
        await in_turn({name: one.rate for name, one in together.items()}, options.rounds)
    configuration = {
        **model,
        "repeats": f"median of {options.rounds} rounds of {options.seconds:g} s, sides in turn",
    }
    publish("bench_shares", __doc__, configuration, [results(together)], write=options.write)


def results(together: Mapping[str, Together]) -> Table:
    table = Table("steps a second", ("weights", "first", "second", "part of the first", "target", "together of one alone",
                                     "target"))  # fmt: skip
    alone = [sum(got) for got in together[ALONE].got]
    table.rows.append((ALONE, statistics.median(alone), None, None, None, None, None))
    for name, (_, (low, high)) in PAIRS.items():
        first, second = zip(*together[name].got, strict=True)
        part = statistics.median(one / (one + other) for one, other in zip(first, second, strict=True))
        whole = statistics.median((one + other) / all_ for one, other, all_ in zip(first, second, alone, strict=True))
        goal = f"{low:g} to {high:g}: {'met' if low <= part <= high else 'MISSED'}"
        rows = [name, statistics.median(first), statistics.median(second), part, goal, whole, target(whole, TOGETHER)]
        table.rows.append(rows)
    return table


if __name__ == "__main__":
    asyncio.run(main())
