"""Batches from your own loader: made ahead in other processes, taken in order, never more than a few at a time.

    python examples/own_data.py

Trainer.run takes any iterable or async iterable of (tokens, targets). It advances a plain iterable in a thread, one batch when
a step needs it, which is enough if a batch is quick to make. If a batch takes as long as a step, make batches ahead in other
processes: Python code that computes in threads would slow down the event loop.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing

import numpy as np
from numpy.typing import NDArray

from asynctile import Engine
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer

CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=64, block_size=32, vocab_size=256)
TEXT = b"a loader may read texts from files, from a database or from another machine; "
#: The most batches that are in the making or wait to be taken.
AHEAD = 4

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]


def make(number: int) -> Batch:
    """Make batch `number` in one of the processes: a real loader would read, filter, tokenize and pack texts here."""
    tokens, random = np.frombuffer(TEXT * 20, np.uint8).astype(np.int64), np.random.default_rng(number)
    starts = random.integers(0, len(tokens) - CONFIG.block_size, 4)
    windows = np.stack([tokens[start : start + CONFIG.block_size + 1] for start in starts])
    targets = windows[:, 1:].copy()
    targets[windows[:, 1:] == ord(";")] = -100  # the loss ignores targets of -100
    return windows[:, :-1], targets


async def batches(pool: ProcessPoolExecutor, first: int, count: int) -> AsyncGenerator[Batch]:
    """Yield batches first, first + 1, ... in this order, no matter which process finishes first."""
    loop, ahead = asyncio.get_running_loop(), deque[asyncio.Future[Batch]]()
    try:
        for number in range(first, first + count):
            if len(ahead) == AHEAD:
                yield await ahead.popleft()
            ahead.append(loop.run_in_executor(pool, make, number))
        while ahead:
            yield await ahead.popleft()
    finally:  # also when the training ends early or fails
        for batch in ahead:
            batch.cancel()


async def main(steps: int = 12) -> None:
    # Spawn instead of fork: an engine has threads, and a child forked from a process with threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=2, mp_context=context) as pool:
        async with Engine("cpu", host_memory="64MiB") as engine:
            trainer = Trainer(await GPT2.create(engine, CONFIG, seed=1), AdamW(lr=3e-3))
            async with aclosing(batches(pool, first=0, count=steps)) as loader:
                async for report in trainer.run(loader):
                    # Checkpoints keep data_state, and Trainer.load restores it.
                    trainer.data_state = {"next_batch": report.step}
                    print(f"step {report.step}: loss {report.loss:.3f}, {report.tokens_per_s:.0f} tokens/s")


if __name__ == "__main__":
    asyncio.run(main())
