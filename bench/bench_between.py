"""What does a step cost behind a validation, a text or a save, compared with a step behind another step?

    python bench/bench_between.py [--rounds 5] [--caps 0.25 0.10] [--write]

A schedule ends where it begins, so a step behind another step moves only its own bytes. Behind another program the tiles first
move back to that beginning: at most one cap of bytes each way. The last column gives the alternative, a schedule of its own for
each pair of programs, as the CPU seconds that one such schedule takes to work out, divided by the seconds that the moves take.
There are no targets.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from statistics import median
from typing import Any

from bench_stream import BATCH, CONFIG, LENGTH, MODEL, STATES, rate_of
from common import Table, arguments, batch, publish, trainer_on

from asynctile import Engine
from asynctile.layers import Trainer
from asynctile.layers.model_state import model_state_of
from asynctile.repeat.space import space_on
from asynctile.schedule.decide import decide


async def deciding_s(trainer: Trainer, tokens: Any) -> float:
    """CPU seconds in which the schedule of one validation is worked out, on the caps as they are."""
    model = model_state_of(trainer.model)
    program = model.program("loss", *tokens.shape)
    space = space_on(model.runtime.tiers, model.demand(program))
    started = time.thread_time()
    assert decide(program, space) is not None
    return time.thread_time() - started


async def main() -> None:
    options = arguments(__doc__, rounds=5, caps=(0.25, 0.10))
    tokens, targets = batch(CONFIG, BATCH, LENGTH)
    table = Table("a step", ("cap", "behind", "s", "MB up", "MB down"))
    extra = Table("bringing tiles back", ("cap", "s more", "MB more up", "s to decide instead"))
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
            for number in range(options.rounds + 1):
                for name, run in between.items():
                    await run()
                    report = await trainer.step(tokens, targets)
                    if number:  # the first round makes the schedules
                        found[name].append((report.step_s, report.uploaded_bytes / 1e6, report.downloaded_bytes / 1e6))
            medians = {name: [median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
            table.rows += [(f"{share:.0%}", name, *row) for name, row in medians.items()]
            more = [one - other for one, other in zip(medians["a validation"], medians["a step"], strict=True)]
            extra.rows.append((f"{share:.0%}", more[0], more[1], await deciding_s(trainer, tokens)))
    configuration = {"model": MODEL, "states": STATES, "repeats": f"median of {options.rounds} rounds, in turn"}
    publish("bench_between", __doc__, configuration, [table, extra], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
