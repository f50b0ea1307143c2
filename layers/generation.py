"""A text of any length, token by token: what `Model.generate` does. Texts that end at block_size are serving.py's.

As long as prompt and text fit into block_size positions they are computed with a cache, beside all others that are. Behind
that the window slides, and each token is computed from the whole window: the learned positions of all tokens in it change.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.requests import Request
from asynctile.layers.sampling import RecentTokens, Sampler
from asynctile.layers.serving import Serving


async def written(
    prompt: list[int],
    count: int,
    sampler: Sampler,
    block_size: int,
    serving: Serving,
    logits: Callable[[NDArray[np.int32]], Awaitable[NDArray[np.float32]]],
) -> AsyncGenerator[int]:
    """`count` tokens behind the prompt, of 1 to block_size tokens. logits: (1, T, V) of tokens (1, T), uncached."""
    tokens = list(prompt)
    cached = min(count, block_size - len(prompt))
    if cached:
        reader = await serving.begin(Request(prompt, cached, sampler))
        try:
            async for token in reader:
                tokens.append(token.id)
                yield token.id
        finally:
            reader.close()
    window = RecentTokens(tokens, block_size)
    for _ in range(count - cached):
        found: Any = await logits(window.padded())
        tokens.append(sampler.choose(found[0, len(window) - 1], tokens))
        window.append(tokens[-1])
        yield tokens[-1]
