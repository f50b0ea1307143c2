"""Text that a model writes, piece by piece.

Covers `stream_text`. Choosing tokens is the model's `generate`, what they show wording.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from asynctile.cli.terminal import printable
from asynctile.layers import GPT2, Sampling
from asynctile.layers.stopping import Stopping
from asynctile.layers.tokenizer import Tokenizer
from asynctile.layers.wording import Wording

__all__ = ["stream_text"]


async def stream_text(
    model: GPT2,
    tokenizer: Tokenizer,
    prompt: NDArray[np.int64],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    stopping: Stopping,
) -> AsyncGenerator[str]:
    """The continuation of `prompt` (ids) in printable pieces that never cut a character, up to where `stopping` ends it."""
    wording = Wording(stopping, tokenizer, prompt)
    async with aclosing(model.generate(prompt, max_new_tokens=max_new_tokens, **asdict(sampling))) as tokens:
        async for token in tokens:
            yield printable(wording.push(token))
            if wording.is_ended:
                return
    yield printable(wording.end())
