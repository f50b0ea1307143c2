"""How long does it take to decide a schedule, and how much longer is the first step of a training?

    python bench/bench_deciding.py [--tries 5] [--write]

CPU seconds of `decide`, the median of --tries after one call that loads its compiled code: for a step of gpt2-xl on a GPU under
a cap of 25% of the states (nothing runs), and for the first two programs of a text, its prompt and its next token, with a model
of width 128 and with gpt2. Then the seconds of the first step of a new training, less those of a later one, for the model of
`make train` under its cap of 4 MiB, kernels compiled; each try is an engine of its own. Targets: 0.3 s, 5 ms and 0.3 s.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from common import Table, arguments, batch, publish, target, trainer_on
from gpu_rows import config_named
from small_model import SHAPE

from asynctile import Engine
from asynctile.execute import space
from asynctile.layers import GPT2, GPT2Config
from asynctile.layers.machine import Machine, Work
from asynctile.layers.plan import plan_step
from asynctile.schedule.decide import decide

TEXTS = {
    "width 128": GPT2Config(n_layer=4, n_head=4, n_embd=128, block_size=256, vocab_size=256),
    "gpt2": GPT2Config(n_layer=12, n_head=12, n_embd=768, block_size=1024, vocab_size=50257),
}
PROMPT = list(range(20))
CAP, BATCH, LATER = 4 << 20, 12, 5


class Timed:
    """Decides as ever, and once more as often as asked, to time it. seconds: CPU seconds by number of operations."""

    def __init__(self, tries: int) -> None:
        self.seconds: list[tuple[int, float]] = []
        self._tries = tries

    def __call__(self, program: Any, given: Any) -> Any:
        decided = decide(program, given)
        spent = []
        for _ in range(self._tries):
            began = time.thread_time()
            decide(program, given)
            spent.append(time.thread_time() - began)
        self.seconds.append((len(program), statistics.median(spent)))
        return decided


async def first_programs(config: GPT2Config, share: float | None) -> None:
    """Write two tokens, so that the programs of a prompt and of one more token are decided."""
    placed: dict[str, Any] = {} if share is None else {"device": "emulated", "device_memory": int(share * config.states_nbytes)}
    async with Engine(**({"device": "cpu"} | placed)) as engine:
        model = await GPT2.create(engine, config)
        async for _ in model.generate(PROMPT, max_new_tokens=2):
            pass


async def first_step() -> tuple[float, float]:
    """Return the seconds of the first step of a training, and the median of later ones."""
    tokens, targets = batch(SHAPE, BATCH, SHAPE.block_size)
    async with Engine("emulated", device_memory=CAP) as engine:
        trainer = await trainer_on(engine, SHAPE)
        spent = [(await trainer.step(tokens, targets)).step_s for _ in range(3 + LATER)]
    return spent[0], statistics.median(spent[3:])


def main() -> None:
    options = arguments(__doc__, tries=5)
    table = Table("deciding", ("program", "operations", "CPU s", "target"))
    with ExitStack() as stack:
        timed = Timed(options.tries)
        stack.enter_context(patch.object(space, "decide", timed))
        config = config_named("gpt2-xl", 1024)
        plan_step(config, Work(batch_size=4, seq_len=1024),
                  Machine(device="cuda:0", device_memory=config.states_nbytes // 4))  # fmt: skip
        table.rows += [("a step of gpt2-xl at 25%", *found, target(found[1], 0.3, above=False)) for found in timed.seconds]
        for name, shape in TEXTS.items():
            for where, share in (("cpu", None), ("emulated, 25%", 0.25)):
                timed.seconds.clear()
                asyncio.run(first_programs(shape, share))
                table.rows += [(f"a text of {name}, {where}, {what}", *found, target(found[1], 5e-3, above=False))
                               for what, found in zip(("prompt", "next token"), timed.seconds, strict=True)]  # fmt: skip
    steps = Table("the first step", ("try", "first s", "later s", "longer s", "target"))
    for number in range(options.tries):
        first_s, later_s = asyncio.run(first_step())
        longer_s = first_s - later_s
        steps.rows.append((number + 1, first_s, later_s, longer_s, target(longer_s, 0.3, above=False)))
    publish("bench_deciding", __doc__, {"repeats": f"{options.tries} tries"}, [table, steps], write=options.write)


if __name__ == "__main__":
    main()
