"""What do replicas cost on one device?

    python bench/bench_replicas.py [--rounds 9] [--steps 4] [--widths 128 512] [--write]

The same batch on `cpu` for one, two and four replicas. replicas x micro_batches is 4 throughout, so all train on the same row
tiles in the same passes. What remains are the partial gradients: their additions, and their memory. Seconds are compared with
those of one replica in the same round. Target: at width 512 a step takes at most 5% longer.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from common import Table, arguments, batch, in_turn, publish, steps
from paired import Bound, change, verdict
from small_model import SHAPE

from asynctile import Engine
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer

#: By width: the model of `make train`, and one whose step is mostly products.
MODELS = {128: (SHAPE, 12), 512: (GPT2Config(n_layer=4, n_head=8, n_embd=512, block_size=256, vocab_size=4096), 8)}
PARTS = 4
REPLICAS = (1, 2, 4)
BOUNDS = {512: Bound(5, percent=True)}


async def open_trainer(stack: AsyncExitStack, config: GPT2Config, replicas: int) -> tuple[Engine, Trainer]:
    engine = await stack.enter_async_context(Engine("cpu"))
    model = await GPT2.create(engine, config, seed=1)
    return engine, Trainer(model, AdamW(lr=1e-4), micro_batches=PARTS // replicas, replicas=replicas)


async def measured(width: int, rounds: int, count: int) -> Table:
    """Measure one width, all replicas in turn."""
    config, size = MODELS[width]
    tokens, targets = batch(config, size, config.block_size)
    async with AsyncExitStack() as stack:
        opened = {replicas: await open_trainer(stack, config, replicas) for replicas in REPLICAS}
        operations, peaks = {}, {}
        for replicas, (engine, trainer) in opened.items():
            await trainer.step(tokens, targets)
            before = engine.statistics().operations
            await trainer.step(tokens, targets)
            after = engine.statistics()
            operations[replicas], peaks[replicas] = after.operations - before, after.host_peak_bytes
        sides = {f"replicas {replicas}": steps(trainer, tokens, targets, count) for replicas, (_, trainer) in opened.items()}
        await in_turn(sides, 1)
        seconds = dict(zip(REPLICAS, (await in_turn(sides, rounds)).values(), strict=True))
    title = f"width {width}: {config.summary}, B {size}, T {config.block_size}"
    return results(title, operations, peaks, seconds, BOUNDS.get(width))


def results(
    title: str,
    operations: Mapping[int, int],
    peaks: Mapping[int, int],
    seconds: Mapping[int, Sequence[float]],
    bound: Bound | None,
) -> Table:
    """Return the table of one width. operations, peaks: of a step, in bytes. seconds: by round."""
    table = Table(title, ("replicas", "operations", "more", "MB of tiles", "more", "ms a step", "more (interval)", "target"))
    for replicas in REPLICAS:
        ms = 1e3 * statistics.median(seconds[replicas])
        row = [replicas, operations[replicas], None, peaks[replicas] / 1e6, None, ms, None, None]
        if replicas > 1:
            slower = change([100 * (new / old - 1) for new, old in zip(seconds[replicas], seconds[1], strict=True)])
            row[2], row[4] = (f"{100 * (those[replicas] / those[1] - 1):.0f}%" for those in (operations, peaks))
            row[6] = f"{slower.median:.1f}% ({slower.low:.1f} to {slower.high:.1f})"
            row[7] = verdict(slower, bound, "%") if bound else None
        table.rows.append(row)
    return table


async def main() -> None:
    options = arguments(__doc__, rounds=9, steps=4, widths=tuple(MODELS))
    tables = [await measured(width, options.rounds, options.steps) for width in options.widths]
    configuration = {
        "batch": f"random tokens, float32, on cpu, replicas x micro_batches {PARTS}",
        "repeats": f"median of {options.rounds} rounds of {options.steps} steps, in turn",
    }
    publish("bench_replicas", __doc__, configuration, tables, write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
