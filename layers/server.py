"""What users call to serve a model: `Server`, made by `Model.serve`. Who is computed when, and with whom, is serving.py's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from asynctile.errors import BudgetError, DeviceError
from asynctile.layers.guesses import Continuation, answering
from asynctile.layers.requests import Request, Token, check_count, check_prompt
from asynctile.layers.sampling import Sampler, Sampling
from asynctile.layers.serving import MOST, Serving
from asynctile.layers.source import Source
from asynctile.layers.special_tokens import check_fit
from asynctile.layers.stopping import Stopping
from asynctile.layers.tokenizer import Tokenizer
from asynctile.layers.wording import Wording
from asynctile.loop.thread import under_shield
from asynctile.storage.sizes import format_size, parse_size


@answering
class Server:
    """Texts of one model for many at once: `async with model.serve() as server`, then `server.generate(...)` from any loops.

    most: requests that are computed at once; more wait in order of asking. cache: bytes of their keys and values, as an int or
    a string such as "64MiB"; None: as much as `most` texts of block_size tokens take. It is part of what the caps count, and
    taken as requests need it, and kept until the server is closed. tokenizer: that of the model, for text instead of ids.
    ValueError or TypeError for other arguments or another model's tokenizer, BudgetError for a cache below one page.
    """

    def __init__(
        self,
        source: Source,
        *,
        most: int = MOST,
        cache: int | str | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self._source = source
        self._tokenizer = tokenizer
        if tokenizer is not None:
            check_fit(tokenizer, source.parameters.config.vocab_size, "the model that is to be served")
        self._serving = Serving(source, check_count("most", most, 1), keeps=True)
        if cache is not None:
            nbytes, page = parse_size(cache), self._serving.cache.page_nbytes
            if nbytes < page:
                what = f"cache is {format_size(nbytes)}, below a page of {format_size(page)}; raise cache"
                raise BudgetError(what, floor=page)
            self._serving = Serving(source, most, nbytes // page, keeps=True)
        self._is_open = False
        #: the loop on which its block began
        self._opener: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        """DeviceError if the engine is not open, or this server is already; TornModelError if the weights are of no single
        step, BudgetError if the share cannot hold its versions of them.
        """
        if self._is_open:
            raise DeviceError("the server is open already, and would be closed at the inner end; enter it once")
        self._opener = asyncio.get_running_loop()
        await self._source.share.call(self._open(), undo=lambda _: self._close())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opener is not None:
            await self._finish(kind, self._opener)

    async def aclose(self) -> None:
        """End every request that is left with a DeviceError, and give the memory of the cache back: whole, however often it is
        cancelled; CancelledError afterwards.
        """
        await self._finish(None, asyncio.get_running_loop())

    async def _finish(self, kind: type[BaseException] | None, began_on: asyncio.AbstractEventLoop) -> None:
        if self._is_open:
            self._is_open = False
            await self._source.share.give_back(self._close, kind, began_on)

    async def publish(self) -> bool:
        """Whether texts that are asked for from now on follow from the weights of the model's last step.

        On the model's own share they always do. On another, steps are published as they end, but for those that are too short
        for that; this publishes the last one now, waiting for a step under way. False where texts that began longer ago still
        read the version that would be overwritten: there are two. TornModelError if the model is torn, DeviceError once closed.
        """
        self._check_open()
        return await self._source.share.call(self._source.publish())

    def generate(
        self,
        prompt: Sequence[int] | NDArray[Any] | str,
        *,
        max_new_tokens: int = 50,
        temperature: float = 0.8,
        top_k: int | None = 50,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int | None = None,
        stop_ids: int | Collection[int] = (),
        stop: str | Collection[str] = (),
    ) -> AsyncGenerator[Token]:
        """Yield the tokens that follow a prompt, ids (T,), T below block_size, or text, one by one; options are those of
        `Sampling` and `Stopping`.

        The last one says why it is: "stop" at one of stop_ids or where a string of stop is complete, "length" behind
        max_new_tokens or where prompt and text are block_size tokens. The same seed gives the same text whoever else asks.
        At once, before the first token is asked for: ValueError or TypeError for wrong arguments, BudgetError for a text that
        the cache cannot hold, DeviceError if the server is not open. Break off whenever you like: `aclose`, a timeout, a
        cancellation.
        """
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                            repetition_penalty=repetition_penalty, seed=seed)  # fmt: skip
        config = self._source.parameters.config
        ids = check_prompt(self._encoded(prompt) if isinstance(prompt, str) else prompt, config)
        count = min(check_count("max_new_tokens", max_new_tokens, 1), config.block_size - len(ids))
        stopping = Stopping(stop_ids, stop)
        stopping.check_ids(config.vocab_size)
        wording = self._wording(stopping, stop, ids)
        self._check_open()
        request = Request(ids, count, Sampler(sampling), wording)
        self._serving.check_pages(request)
        return Continuation(self._tokens(request))

    async def _tokens(self, request: Request) -> AsyncGenerator[Token]:
        reader = await self._serving.begin(request)
        try:
            async for token in reader:
                yield token
        finally:
            reader.close()

    def _encoded(self, prompt: str) -> NDArray[Any]:
        if self._tokenizer is None:
            raise TypeError("prompt is a text, and this server has no tokenizer; give token ids, or serve(tokenizer=...)")
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"prompt has {prompt[error.start]!r} at character {error.start}, half of a surrogate pair, which "
                             "is no text; decode it whole, or with errors='replace'") from None
        return self._tokenizer.encode(prompt).astype(np.int64)

    def _wording(self, stopping: Stopping, stop: str | Collection[str], prompt: list[int]) -> Wording:
        if self._tokenizer is None and stop:
            raise ValueError("stop has strings, and this server has no tokenizer to find them; give stop_ids, or "
                             "serve(tokenizer=...)")
        return Wording(stopping, self._tokenizer, prompt)

    def _check_open(self) -> None:
        if not self._is_open:
            raise DeviceError("the server is not open: use it inside 'async with model.serve()'")

    async def _open(self) -> None:
        try:
            await self._source.open()
        except BaseException:
            await under_shield(self._source.close())
            raise
        self._serving.open()
        self._is_open = True

    async def _close(self) -> None:
        self._is_open = False
        try:
            await self._serving.end(DeviceError("the server was closed before this text had ended; wait for its texts first"))
        finally:  # or a training would go on to publish for nobody
            await self._source.close()
