"""One request for text: its settings, its state in the cache, and the tokens chosen so far.

`check_prompt`, `check_context` and `check_kind` refuse arguments that no model accepts. batching.py chooses
which requests are computed together, serving.py computes them, sampling.py chooses tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.batch import as_ids, check_tokens
from asynctile.layers.batching import Part
from asynctile.layers.config import Config
from asynctile.layers.decode import Span
from asynctile.layers.sampling import Sampler
from asynctile.layers.source import Weights
from asynctile.layers.telling import ToldRequest
from asynctile.layers.wording import Wording
from asynctile.loop.mailbox import Mailbox
from asynctile.storage.input import shown

#: Why a text ends: at a stop id or stop string, or because it has reached its maximum length.
Reason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a generated text, by its id.

    text: the text that can be shown after this token, "" without a tokenizer. Characters come whole, and text is held back
    while it may be the beginning of a stop string. So a token often has no text, and a later one has more.

    finish_reason: why the text ends here ("stop" or "length"); None for all other tokens. The id of a token that stops a text
    is not part of the text.
    """

    id: int
    text: str = ""
    finish_reason: Reason | None = None


class Request:
    """One request for text.

    prompt (T,): at least one token id. count: how many tokens to write. sampler: chooses them. wording: turns them into text
    and finds the end; None: the text has exactly `count` tokens.

    tokens: prompt and text so far. cached: how many of them are in the cache, in `pages` of `device`, computed with `version`
    of the weights. waited: runs since the request was last in one. is_left: whether its reader was closed. loop: the asker's
    event loop. box: the mailbox for its tokens. weights, told: the weights that compute it and its events; set on submission.
    """

    weights: Weights
    told: ToldRequest

    def __init__(self, prompt: Sequence[int], count: int, sampler: Sampler, wording: Wording | None = None) -> None:
        self.tokens = list(prompt)
        self.cached = self.waited = 0
        self.device = 0
        self.pages: tuple[int, ...] = ()
        self.version: int | None = None
        self.is_left = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.box: Mailbox[Token] = Mailbox()
        self._left = count
        self._sampler = sampler
        self._wording = wording

    @property
    def is_gone(self) -> bool:
        """Whether the reader of the request's tokens is gone."""
        return self.is_left or (self.loop is not None and self.loop.is_closed())

    @property
    def positions(self) -> int:
        """The most positions that it can occupy in the cache. The last token needs none, because nothing follows it."""
        return len(self.tokens) + self._left - 1

    @property
    def missing(self) -> int:
        """Number of tokens that are not in the cache."""
        return len(self.tokens) - self.cached

    def span(self, skipped: int, count: int) -> Span:
        """Return `count` tokens that are not in the cache, after the first `skipped` of them."""
        start = self.cached + skipped
        return Span(np.array(self.tokens[start : start + count], np.int32), start, self.pages)

    def choose(self, logits: NDArray[np.float32]) -> Token:
        """Choose the next token from logits (V,) of the last one, and return it."""
        chosen = self._sampler.choose(logits, self.tokens)
        self.tokens.append(chosen)
        self._left -= 1
        reason: Reason | None = None if self._left else "length"
        if self._wording is None:
            return Token(chosen, "", reason)
        text = self._wording.push(chosen)
        if not (self._left or self._wording.is_ended):
            text += self._wording.end()
        return Token(chosen, text, "stop" if self._wording.is_ended else reason)


class Reader:
    """The tokens of a request as they arrive. Reading raises the error that ended the request.

    check: raises if no token can arrive any more. Closing the reader gives up the request.
    """

    def __init__(self, request: Request, check: Callable[[], None]) -> None:
        self._request = request
        self._check = check
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Token:
        if self._is_over:
            raise StopAsyncIteration
        self._check()
        token = await self._request.box.take()
        self._is_over = token.finish_reason is not None
        return token

    def close(self) -> None:
        self._request.is_left = True


def spans(requests: Sequence[Request], parts: Sequence[Part]) -> list[Span]:
    """Return the rows of a run. Rows whose logits are wanted come first: the last row of each part that wants them."""
    first = [requests[part.index].span(part.count - 1, 1) for part in parts if part.wants]
    rest = [requests[part.index].span(0, part.count - part.wants) for part in parts]
    return first + [span for span in rest if len(span.tokens)]


def check_prompt(prompt: Any, config: Config) -> list[int]:
    """Return the token ids (T,) of a prompt that a cache can hold; TypeError or ValueError in one sentence otherwise."""
    array = as_ids("prompt", prompt, "(T,)")
    if array.ndim == 1 and array.size >= config.block_size:
        raise ValueError(
            f"prompt has {array.size} tokens, expected at most {config.block_size - 1}, one less than block_size, where a "
            "served text ends; give only the last of them, or use Model.generate, whose window slides"
        )
    return check_context("prompt", array, config)


def check_context(name: str, prompt: Any, config: Config) -> list[int]:
    """Return the last block_size token ids of a prompt (T,), which may be longer; errors as in `check_prompt`."""
    array = as_ids(name, prompt, "(T,)")
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}, expected (T,): the token ids of one text; call once for each text")
    if not array.size:
        raise ValueError(f"{name} is empty, expected at least one token id; give the token that begins a text")
    return check_tokens(name, array[None, -config.block_size:], config)[0].tolist()


def check_kind(name: str, value: object, kind: type, expected: str) -> None:
    """Raise TypeError unless `value` is an instance of `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {shown(value)}, expected {expected}")
