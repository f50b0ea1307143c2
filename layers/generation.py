"""A text of any length, token by token: the body of `Model.generate`. serving.py writes texts that end at block_size.

While prompt and text fit into block_size positions, they are computed with a cache, together with all other requests. After
that the window slides, and each token is computed from the whole window, because the learned positions of all its tokens
change.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.requests import Request
from asynctile.layers.sampling import Sampler
from asynctile.layers.serving import Serving


async def written(
    prompt: list[int],
    count: int,
    sampler: Sampler,
    block_size: int,
    serving: Serving,
    logits: Callable[[NDArray[np.int32]], Awaitable[NDArray[np.float32]]],
) -> AsyncGenerator[int]:
    """Yield `count` tokens that follow a prompt of 1 to block_size tokens.

    sampler: chooses them. serving: computes them over a cache, up to block_size tokens in all. logits: for the rest, returns
    (1, T, V) for tokens (1, T), without a cache.
    """
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
    for _ in range(count - cached):
        found = await logits(np.array([tokens[-block_size:]], np.int32))
        tokens.append(sampler.choose(found[0, -1], tokens))
        yield tokens[-1]
