"""The model of `make train` for measurements: its shape, its options and its batches.

bench_small.py measures its speed, bench_ticker.py its effect on a caller's event loop.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.cli.model import choose_shape, new_trainer, open_model
from asynctile.cli.options import Options
from asynctile.cli.placement import engine_of
from asynctile.layers import Trainer
from asynctile.layers.data import Batches
from asynctile.layers.text import TextSource
from asynctile.layers.tokenizer import ByteTokenizer
from asynctile.storage.sizes import format_size

#: The options of `make train`, and the other places where the same model trains.
TYPED: dict[str, Any] = {"lr": 2e-3, "steps": 2500}
CAP = 4 << 20
CPU, CAPPED, RESIDENT = "cpu", f"emulated, {format_size(CAP)}", "emulated, all resident"
PLACES = {
    CPU: Options(device="cpu", **TYPED),
    CAPPED: Options(device="emulated", device_memory=CAP, **TYPED),
    RESIDENT: Options(device="emulated", **TYPED),
}
OPTIONS = PLACES[CAPPED]
SHAPE = choose_shape(OPTIONS, ByteTokenizer.vocab_size)
LENGTH = SHAPE.block_size
MODEL = f"GPT-2, {SHAPE.summary}, T {LENGTH}, B {OPTIONS.batch_size}, float32, states of {format_size(SHAPE.states_nbytes)}"


@cache
def text() -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(TextSource(None).pieces()), np.uint8)


def batches() -> Batches:
    """Return the batches of `asynctile train` without --data and --tokenizer, from the first."""
    return Batches(text(), OPTIONS.batch_size, LENGTH, OPTIONS.seed)


async def open_trainer(stack: AsyncExitStack, place: str) -> Trainer:
    """Open a trainer on an engine of its own, with the same first weights everywhere."""
    options = PLACES[place]
    engine = await stack.enter_async_context(engine_of(options))
    return new_trainer(options, await open_model(engine, options, SHAPE))
