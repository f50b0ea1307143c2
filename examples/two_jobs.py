"""Two jobs on one engine, each with a share of its memory and of its time: a fine-tune, and a model that answers meanwhile.

    python examples/two_jobs.py

Shares keep jobs apart. Each job computes the same results, and moves the same bytes, as alone under its caps; if one fails or
is cancelled, the other goes on. The interactive share goes first until it has used three times the time of the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from asynctile import BudgetError, Engine, Share
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer

CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=64, block_size=64, vocab_size=256)


def batches() -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    random = np.random.default_rng(1)
    while True:
        tokens = random.integers(97, 123, (4, CONFIG.block_size + 1))
        yield tokens[:, :-1], tokens[:, 1:]


async def fine_tune(part: Share, steps: int) -> float:
    trainer = Trainer(await GPT2.create(part, CONFIG, seed=1), AdamW(lr=1e-3))
    reports = [report async for report in trainer.run(batches(), steps=steps)]
    return reports[-1].loss


async def answer(part: Share, prompts: list[str]) -> list[bytes]:
    """Answer all prompts at once; a server computes the next tokens of all its texts together."""
    model = await GPT2.create(part, CONFIG, seed=2)
    async with model.serve(most=4) as server:

        async def text(prompt: str) -> bytes:
            return bytes([token.id async for token in server.generate(list(prompt.encode()), max_new_tokens=8, seed=1)])

        return await asyncio.gather(*map(text, prompts))


async def main() -> None:
    async with (
        Engine("emulated", device_memory="4MiB", host_memory="128MiB") as engine,
        engine.share(device_memory="1MiB", host_memory="32MiB") as training,
        engine.share(device_memory="2MiB", host_memory="32MiB", weight=3.0, interactive=True) as answering,
    ):
        async with asyncio.TaskGroup() as jobs:
            tuned = jobs.create_task(fine_tune(training, steps=10))
            texts = jobs.create_task(answer(answering, ["one", "two", "three"]))
        print(f"loss {tuned.result():.3f}; answers {texts.result()}")
        left = engine.statistics().device_memory_bytes
        print(f"with both shares open, the engine keeps {left} bytes of the device")
        try:
            async with engine.share(device_memory="2MiB", host_memory="32MiB"):
                pass
        except BudgetError as error:  # refused before any work; error.floor is the smallest cap that works
            print(f"a third share: {error}")


if __name__ == "__main__":
    asyncio.run(main())
