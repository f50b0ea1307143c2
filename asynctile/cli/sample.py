"""Text that a model writes: in pieces, or as a sample that continues a run's held-out text.

Covers `stream_text`, and `sample`, which makes a `Sample`. The model chooses tokens, wording.py turns them into text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from asynctile.cli.terminal import printable
from asynctile.layers import Model, Sampling
from asynctile.layers.data_source import DataPart
from asynctile.layers.examples import Examples
from asynctile.layers.stopping import Stopping
from asynctile.layers.tokenizer import Tokenizer
from asynctile.layers.wording import Wording

__all__ = ["MOST_CHARACTERS", "Sample", "sample", "stream_text"]

#: Characters of a sample that are kept: in JSON they fit into one line that can be read again.
MOST_CHARACTERS = 5_000
_PROMPT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a held-out text and a model's continuation of it; both printable."""

    prompt: str = ""
    continuation: str = ""

    @property
    def text(self) -> str:
        """Prompt and continuation as one text."""
        return self.prompt + self.continuation

    def __str__(self) -> str:
        return f"--- sample: start of the held-out text\n{self.prompt}\n--- continued by the model\n{self.continuation}\n---"


async def stream_text(
    model: Model,
    tokenizer: Tokenizer,
    prompt: NDArray[np.int64],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    stopping: Stopping,
) -> AsyncGenerator[str]:
    """Yield the continuation of `prompt` (ids) in pieces that never split a character, until `stopping` ends it."""
    wording = Wording(stopping, tokenizer, prompt)
    async with aclosing(model.generate(prompt, max_new_tokens=max_new_tokens, **asdict(sampling))) as tokens:
        async for token in tokens:
            yield wording.push(token)
            if wording.is_ended:
                return
    yield wording.end()


async def sample(
    model: Model, tokenizer: Tokenizer, held_out: DataPart, *, tokens: int, seed: int, check: Callable[[], object]
) -> Sample:
    """Return the beginning of a held-out text, and `tokens` tokens of the model's continuation.

    seed: of the sampling. check: called after each piece; an error that it raises ends the sample.
    """
    prompt = _beginning(held_out, max(1, model.config.block_size // 2))
    continuation = ""
    async with aclosing(stream_text(model, tokenizer, prompt, max_new_tokens=tokens, sampling=Sampling(seed=seed),
                                    stopping=Stopping())) as pieces:  # fmt: skip
        async for piece in pieces:
            continuation += printable(piece)
            check()
    return Sample(printable(tokenizer.decode(prompt)), continuation)


def _beginning(held_out: DataPart, most: int) -> NDArray[np.int64]:
    """Return the first tokens of a text; of examples, the last `most` tokens before the first answer."""
    if isinstance(held_out, Examples):
        ids, answers = held_out[0]
        begin = 1 + int(np.argmax(answers[1:]))
        return ids[max(0, begin - most) : begin].astype(np.int64)
    return held_out[: min(_PROMPT_TOKENS, most)].astype(np.int64)
