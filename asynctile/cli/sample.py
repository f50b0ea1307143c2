"""Text that a model writes, piece by piece.

Covers `stream_text`. Choosing tokens is the model's `generate`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
from numpy.typing import NDArray

from asynctile.cli.terminal import printable
from asynctile.layers import GPT2
from asynctile.layers.tokenizer import Tokenizer

__all__ = ["stream_text"]

#: What a tokenizer decodes bytes to that are no character, or not yet.
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


async def stream_text(
    model: GPT2,
    tokenizer: Tokenizer,
    prompt: NDArray[np.int64],
    *,
    max_new_tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
) -> AsyncIterator[str]:
    """The continuation of `prompt` (ids) in printable pieces that never cut a character."""
    ids: list[int] = []
    shown = ""
    tokens = model.generate(prompt, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, seed=seed)
    async for token in tokens:
        ids.append(int(token))
        if ids[-1] >= tokenizer.vocab_size:
            # A model may have more rows than its tokenizer has tokens; an untrained one picks them too.
            ids.pop()
            continue
        text = tokenizer.decode(ids)
        if not text.endswith(_UNFINISHED) and text.startswith(shown):
            yield printable(text[len(shown):])
            shown = text
    rest = tokenizer.decode(ids) if ids else ""
    if rest != shown:
        yield printable(rest[len(shown):])
