"""Steps under timeouts, and a training that is stopped and resumed elsewhere: the weights equal those of an undisturbed run.

    python examples/timeouts.py

It takes only asyncio's own tools: asyncio.timeout and task.cancel. A cancelled step has either counted or not happened at all,
and `trainer.step_count` tells which. If the step did not happen, the same run uses its batch for the next step.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asynctile import Engine
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer

CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=64, block_size=32, vocab_size=256)
STEPS = 8


def batches(first: int = 0) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield batches from number `first` on. A training can resume because each batch follows from its number."""
    for number in range(first, STEPS):
        tokens = np.random.default_rng(number).integers(0, 256, (4, CONFIG.block_size + 1))
        yield tokens[:, :-1], tokens[:, 1:]


async def undisturbed() -> dict[str, NDArray[np.float32]]:
    async with Engine("cpu", host_memory="64MiB") as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, seed=1), AdamW(lr=1e-3))
        async for _ in trainer.run(batches()):
            pass
        return await trainer.model.state_dict()


async def half(folder: Path) -> None:
    """Make the first half of the steps under a timeout that is too short at first, and save."""
    async with Engine("cpu", host_memory="64MiB") as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, seed=1), AdamW(lr=1e-3))
        steps, patience_s, late = trainer.run(batches()), 0.001, 0
        while trainer.step_count < STEPS // 2:
            try:
                async with asyncio.timeout(patience_s):
                    await anext(steps)
            except TimeoutError:  # all work of the step has wound down by now
                late, patience_s = late + 1, patience_s * 2
        await steps.aclose()
        assert trainer.last_report is not None  # even if a timeout hid the report of a step that counted
        print(f"{late} timeouts, step {trainer.last_report.step} with loss {trainer.last_report.loss:.4f}")
        await trainer.save(folder)


async def rest(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Make the other steps, cancelled once in the middle, in another engine with a smaller cap."""
    async with Engine("emulated", device_memory="1MiB", host_memory="64MiB") as engine:
        trainer = await Trainer.load(engine, folder)
        steps = trainer.run(batches(trainer.step_count))

        async def go_on() -> None:
            async for _ in steps:
                pass

        training = asyncio.create_task(go_on())
        await asyncio.sleep(0.05)
        training.cancel()
        await asyncio.wait([training])  # when the task is done, the step has wound down
        print(f"cancelled after step {trainer.step_count}")
        await go_on()
        return await trainer.model.state_dict()


async def main() -> None:
    expected = await undisturbed()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "checkpoint"
        await half(folder)
        found = await rest(folder)
    same = all(np.array_equal(found[name], expected[name]) for name in expected)
    print("the weights are", "equal" if same else "not equal", "bit for bit")


if __name__ == "__main__":
    asyncio.run(main())
