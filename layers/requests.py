"""One request for text: what it asks for, what of it is computed, and the tokens that were chosen.

`check_prompt`, `check_context`, `check_count` and `check_kind` refuse what no model can do. Which requests are computed
together is batching.py, by whom and when serving.py; how tokens are chosen is sampling.py.
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

#: Why a text ends: at what it was to stop at, or since it is as long as it may be.
Reason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a text, by its id.

    text: what can be shown of the text with it, "" without a tokenizer: characters come whole, and not before it is clear that
    no stop string begins there; so often none comes, and then more. finish_reason: why it is the last, None for all others. The
    id of a token that stops a text is no part of the text.
    """

    id: int
    text: str = ""
    finish_reason: Reason | None = None


class Request:
    """prompt (T,): of at least one token. count: of tokens to write. sampler: chooses them. wording: says what they show, and
    which is the last; None: they are as many as `count`.

    weights: what it follows from, and told: what is told of it, once it was submitted. tokens: prompt and text so far. cached:
    how many of them stand in the cache, in `pages`, of `version` of the weights. waited: runs since it was last in one.
    is_left: its reader was closed. loop: of who asked. box: where they are put.
    """

    weights: Weights
    told: ToldRequest

    def __init__(self, prompt: Sequence[int], count: int, sampler: Sampler, wording: Wording | None = None) -> None:
        self.tokens = list(prompt)
        self.cached = self.waited = 0
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
        """Whether nobody reads its tokens any more: nobody does whose loop has been closed, be it still there."""
        return self.is_left or (self.loop is not None and self.loop.is_closed())

    @property
    def positions(self) -> int:
        """How many it may come to have in the cache: the last token is followed by none."""
        return len(self.tokens) + self._left - 1

    @property
    def missing(self) -> int:
        """Tokens that are not in the cache."""
        return len(self.tokens) - self.cached

    def span(self, skipped: int, count: int) -> Span:
        """`count` of them, behind the first `skipped`."""
        start = self.cached + skipped
        return Span(np.array(self.tokens[start : start + count], np.int32), start, self.pages)

    def choose(self, logits: NDArray[np.float32]) -> Token:
        """The next token, from logits (V,) of the last one."""
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
    """The tokens of a request, as they come; raises what goes wrong with it. check: raises where none can come any more.

    When it is closed the request is given up.
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
    """The rows of a run, those whose logits are wanted first: the last of each part that wants them."""
    first = [requests[part.index].span(part.count - 1, 1) for part in parts if part.wants]
    rest = [requests[part.index].span(0, part.count - part.wants) for part in parts]
    return first + [span for span in rest if len(span.tokens)]


def check_prompt(prompt: Any, config: Config) -> list[int]:
    """Token ids (T,) of a prompt that a cache can hold; TypeError or ValueError in one sentence if they are none."""
    array = as_ids("prompt", prompt, "(T,)")
    if array.ndim == 1 and array.size >= config.block_size:
        raise ValueError(
            f"prompt has {array.size} tokens, expected at most {config.block_size - 1}, one less than block_size: a served "
            "text ends there; give the last of them, or use Model.generate, whose window slides"
        )
    return check_context("prompt", array, config)


def check_context(name: str, prompt: Any, config: Config) -> list[int]:
    """The last block_size token ids of a prompt (T,), which may be longer; errors as those of `check_prompt`."""
    array = as_ids(name, prompt, "(T,)")
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}, expected (T,): the token ids of one text; ask for each by itself")
    if not array.size:
        raise ValueError(f"{name} is empty, expected at least one token id; begin with the one that begins texts")
    return check_tokens(name, array[None, -config.block_size:], config)[0].tolist()


def check_count(name: str, value: Any, least: int) -> int:
    """A whole number of at least `least`, or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {shown(value)}, expected a whole number of at least {least}")
    return value


def check_kind(name: str, value: object, kind: type, expected: str) -> None:
    """TypeError if an object is none of that kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {shown(value)}, expected {expected}")
