"""What does another program between two steps cost: a validation, or a text?

    python bench/bench_between.py [--rounds 5] [--caps 0.25 0.10] [--write]

A schedule ends where it begins, so a step after another step moves only its own bytes. A step after another program begins
where that program has left the tiles, by a schedule of its own. The first table has that step. In the second, the program
itself brings up bytes after a step, and after a run of itself; the difference is the price of the start. Its last columns have
the CPU seconds to work out the program's schedule, and the one that begins after a step. There are no targets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from statistics import median
from typing import Any

from bench_stream import BATCH, CONFIG, LENGTH, MODEL, STATES, rate_of
from common import Table, arguments, batch, publish, trainer_on

from asynctile import Engine
from asynctile.execute.arrival import start_of
from asynctile.execute.space import space_on
from asynctile.layers import Trainer
from asynctile.layers.model import model_state_of
from asynctile.schedule.decide import arrive, decide
from asynctile.schedule.start import IN_SLOT, Stands


async def deciding_s(trainer: Trainer, tokens: Any) -> tuple[float, float]:
    """CPU seconds in which the schedule of one validation is worked out, and the one from where the tiles stand now."""
    model = model_state_of(trainer.model)
    program, tiers = model.program("loss", model.tiling.rows(*tokens.shape)), model.runtime.tiers
    space, start = space_on(tiers, model.demand(program)), start_of(tiers, program)
    inputs = tuple(Stands(tile, IN_SLOT, False) for tile in program.inputs.values())  # a run puts them in RAM first
    start = start._replace(tiers=(start.tiers[0], start.tiers[1] + inputs))
    began = time.thread_time()
    steady = decide(program, space)
    decided = time.thread_time()
    assert steady is not None
    arrive(steady, space, start)
    return decided - began, time.thread_time() - decided


async def uploaded(engine: Engine, run: Callable[[], Awaitable[Any]]) -> float:
    """Run once; return the MB that came up meanwhile."""
    before = engine.statistics().uploaded_bytes
    await run()
    return (engine.statistics().uploaded_bytes - before) / 1e6


async def main() -> None:
    options = arguments(__doc__, rounds=5, caps=(0.25, 0.10))
    tokens, targets = batch(CONFIG, BATCH, LENGTH)
    table = Table("a step", ("cap", "after", "s", "MB up", "MB down"))
    columns = "cap", "program", "MB up after a step", "after itself", "s to decide", "s to decide after a step"
    between_steps = Table("the program between", columns)
    for share in options.caps:
        async with AsyncExitStack() as stack:
            rate = rate_of(share, 2.0)
            engine = await stack.enter_async_context(
                Engine(device="emulated", device_memory=int(share * CONFIG.states_nbytes), link_rate=rate)
            )
            trainer = await trainer_on(engine, CONFIG)
            model = trainer.model

            async def text(model: Any = model) -> None:
                async for _ in model.generate([1, 2, 3], max_new_tokens=4, seed=1):
                    pass

            between = {"a step": partial(trainer.step, tokens, targets), "a validation": partial(model.loss, tokens, targets),
                       "a text of 4 tokens": text}  # fmt: skip
            found: dict[str, list[Any]] = {name: [] for name in between}
            own: dict[str, tuple[float, float]] = {}  # bytes repeat, so the last round's do
            for number in range(options.rounds + 1):
                for name, run in between.items():
                    own[name] = await uploaded(engine, run), await uploaded(engine, run)
                    report = await trainer.step(tokens, targets)
                    if number:  # the first round makes the schedules
                        found[name].append((report.step_s, report.uploaded_bytes / 1e6, report.downloaded_bytes / 1e6))
            medians = {name: [median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
            table.rows += [(f"{share:.0%}", name, *row) for name, row in medians.items()]
            decide_s = await deciding_s(trainer, tokens)
            for name, (after_a_step, after_itself) in list(own.items())[1:]:
                each_s = decide_s if name == "a validation" else (None, None)
                between_steps.rows.append((f"{share:.0%}", name, after_a_step, after_itself, *each_s))
    configuration = {"model": MODEL, "states": STATES, "repeats": f"median of {options.rounds} rounds, in turn"}
    publish("bench_between", __doc__, configuration, [table, between_steps], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
