"""A client of the whole public face: each result with the type that a type checker is to find for it.

Checked by mypy --strict and by pyright against the package as it is installed, and run as it stands: test_whole_face.py.
What the calls do is tested where they are made.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import asynctile
from asynctile import (
    AsynctileError,
    BudgetError,
    CheckpointError,
    DeviceError,
    Engine,
    Share,
    StalledError,
    Statistics,
    TierError,
    TornModelError,
)
from asynctile.layers import GPT2, AdamW, GPT2Config, StepReport, Trainer

Tokens = NDArray[np.int64]
Tensors = dict[str, NDArray[np.float32]]

CONFIG = GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=16, vocab_size=32)


def batches() -> Iterator[tuple[Tokens, Tokens]]:
    random = np.random.default_rng(1)
    while True:
        tokens = random.integers(0, CONFIG.vocab_size, (2, 17))
        yield tokens[:, :-1], tokens[:, 1:]


async def batches_that_come() -> AsyncIterator[tuple[Tokens, Tokens]]:
    for batch in batches():
        await asyncio.sleep(0)
        yield batch


async def models(part: Share, folder: Path) -> None:
    """Everything of a model, on an engine or on a share of one."""
    model = assert_type(await GPT2.create(part, CONFIG, seed=1, tile=16), GPT2)
    tokens, targets = next(batches())
    assert_type(await model.logits(tokens), NDArray[np.float32])
    assert_type(await model.logits([[1, 2, 3]]), NDArray[np.float32])
    assert_type(await model.loss(tokens, targets), float)
    assert_type(await model.state_dict(), Tensors)
    assert_type(model.config.vocab_size, int)
    assert_type(model.companions["generation_config.json"] if model.companions else b"", bytes)
    async for token in model.generate([1, 2], max_new_tokens=2, temperature=0.8, top_k=5, seed=1):
        assert_type(token, int)
    async with aclosing(model.generate(tokens[0])) as text:
        assert_type(await anext(text), int)
    await model.save_pretrained(folder / "model")
    again = assert_type(await GPT2.from_pretrained(part, folder / "model"), GPT2)
    await again.release()


async def trainings(part: Share, folder: Path) -> None:
    """Everything of a trainer."""
    optimizer = AdamW(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, warmup=1, decay_steps=9, min_lr=1e-4)
    model = await GPT2.create(part, GPT2Config.from_hf(CONFIG.to_hf()))
    trainer = Trainer(model, optimizer, clip_norm=1.0, micro_batches=2, recompute="auto", update="auto")
    tokens, targets = next(batches())
    report = assert_type(await trainer.step(tokens, targets), StepReport)
    assert_type((report.step, report.loss, report.skipped), tuple[int, float, bool])
    assert_type(report.as_dict(), dict[str, Any])
    async for report in trainer.run(batches(), steps=1):
        assert_type(report, StepReport)
    steps = trainer.run(batches_that_come())
    async with aclosing(steps):
        async for report in steps:
            assert_type(report, StepReport)
            break
    assert_type(await trainer.gradients(tokens, targets), Tensors)
    assert_type(trainer.last_report, StepReport | None)
    assert_type((trainer.step_count, trainer.skipped_count, trainer.saving), tuple[int, int, bool])
    assert_type(trainer.optimizer.rate(1), float)
    trainer.data_state = {"position": 17}
    await trainer.save(folder / "checkpoint", wait=False)
    await trainer.saved()
    loaded = assert_type(await Trainer.load(part, str(folder / "checkpoint")), Trainer)
    assert_type(loaded.model, GPT2)


def describe(error: AsynctileError) -> str:
    """Errors as a service answers with them."""
    match error:
        case BudgetError():
            return f"needs {assert_type(error.floor, int)} bytes"
        case CheckpointError() | DeviceError() | TornModelError():
            return str(error)
        case StalledError():
            return "it hangs"
        case TierError():
            return "a tier"
        case _:
            return "something else"


async def main(folder: Path) -> Statistics:
    engine = Engine(device="emulated", device_memory="2MiB", host_memory=64 << 20, prefetch=2, precision="fp32", watchdog=60.0)
    async with engine as opened:
        assert_type(opened, Engine)
        engine.start_trace()
        async with (
            engine.share(device_memory="512KiB", host_memory="16MiB") as one,
            engine.share(device_memory="512KiB", host_memory="16MiB") as other,
        ):
            assert_type(one, Share)
            await asyncio.gather(models(one, folder), trainings(other, folder / "of-the-other"))
        try:
            await GPT2.create(engine, GPT2Config.named("gpt2-xl"))
        except AsynctileError as error:
            assert_type(describe(error), str)
        engine.write_trace(folder / "trace.json")
        return assert_type(engine.statistics(), Statistics)


if __name__ == "__main__":
    print(assert_type(asynctile.__version__, str), asyncio.run(main(Path(sys.argv[1]))))
