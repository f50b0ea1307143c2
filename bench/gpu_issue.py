"""How long does the host take to issue an operation of a training under a cap, if the GPU takes no time at all?

    python bench/gpu_issue.py [--models gpt2-medium gpt2-xl] [--caps 0.10 0.25] [--scale 8] [--steps 5]

The engine, the CUDA device and its streams as they are, over a driver of which every call returns at once
(tests/cuda/idle.py): what is left is Python, and the RAM that tiles begin in. Models have 1/scale of the width, vocabulary
and length of their names, cut by 1/scale of the tile: as many operations and copies as the whole ones, without their bytes.
Every update is on the device. A step's wall time over its operations, the copies that go with them included, is what
gpu_plan.py takes as ISSUE_US; what CuPy's own calls take comes on top, a few microseconds each.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Any

import numpy as np
from common import Table, arguments, machine
from gpu_common import Speed
from gpu_rows import PLACED, Row, config_named

import asynctile.device
from asynctile import Engine
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from tests.cuda.idle import IdleDriver


def shrunk(config: GPT2Config, scale: int) -> GPT2Config:
    """As many layers and heads, 1/scale of everything that is cut into tiles."""
    return GPT2Config(
        n_layer=config.n_layer, n_head=config.n_head, n_embd=config.n_embd // scale,
        block_size=config.block_size // scale, vocab_size=config.vocab_size // scale,
    )  # fmt: skip


async def issued(name: str, share: float, options: Namespace) -> tuple[Any, ...]:
    """(model, cap, tile, operations a step, seconds a step, microseconds an operation)."""
    tile = PLACED[name, share]
    config = shrunk(config_named(name, options.length), options.scale)
    cap = int(share * config.states_nbytes)
    row = Row(config=config, batch=options.batch, length=config.block_size, tile=tile // options.scale, cap=cap)
    async with Engine("cuda:0", device_memory=cap, precision="bf16") as engine:
        model = await GPT2.create(engine, config, seed=1, tile=row.tile)
        trainer = Trainer(model, AdamW(lr=1e-4), recompute=True, update="device")
        before = engine.statistics().operations
        step_s = (await Speed.of(trainer, row, options.steps)).step_s
        operations = (engine.statistics().operations - before) // trainer.step_count
    return name, share, tile, operations, step_s, step_s / operations * 1e6


async def main(options: Namespace) -> None:
    asynctile.device.open_driver = lambda name: IdleDriver()
    table = Table("issued to a GPU that takes no time",
                  ("model", "cap", "tile", "operations", "s a step", "us an operation"))  # fmt: skip
    for name in options.models:
        for share in options.caps:
            table.rows.append(await issued(name, share, options))
            print(table.rows[-1], flush=True)
    print("\n".join(f"{key}: {value}" for key, value in machine().items()))
    print(table.text())


if __name__ == "__main__":
    np.seterr(all="ignore")
    asyncio.run(main(arguments(__doc__, models=("gpt2-medium", "gpt2-xl"), caps=(0.10, 0.25), batch=16, length=1024, scale=8,
                               steps=5)))  # fmt: skip
