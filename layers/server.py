"""The public interface for serving a model: `Server`, made by `Model.serve`. serving.py schedules the requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from asynctile.errors import BudgetError, DeviceError
from asynctile.layers.config import check_count
from asynctile.layers.guesses import Continuation, answering
from asynctile.layers.requests import Request, Token, check_prompt
from asynctile.layers.sampling import Sampler, Sampling
from asynctile.layers.serving import MOST, Serving
from asynctile.layers.source import Source
from asynctile.layers.special_tokens import check_fit, prompt_ids
from asynctile.layers.stopping import Stopping
from asynctile.layers.tokenizer import Tokenizer
from asynctile.layers.wording import Wording
from asynctile.loop.thread import under_shield
from asynctile.storage.sizes import format_size, parse_size


@answering
class Server:
    """Texts of one model for many users: `async with model.serve() as server`, then `server.generate(...)` from any loop.

    most: how many requests are computed at once; others wait in order of asking.

    cache: bytes for keys and values, as an int or a string such as "64MiB"; None: enough for `most` texts of block_size tokens.
    The caps count it. Memory is taken as requests need it, and kept until the server is closed.

    tokenizer: the model's tokenizer, for text instead of ids.

    ValueError or TypeError for wrong arguments or another model's tokenizer, BudgetError for a cache smaller than one page.
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
            nbytes, page = parse_size(cache), self._serving.caches.page_nbytes
            if nbytes < page:
                what = f"cache is {format_size(nbytes)}, less than one page of {format_size(page)}; raise cache"
                raise BudgetError(what, floor=page)
            self._serving = Serving(source, most, nbytes // page, keeps=True)
        self._is_open = False
        #: the loop on which its `async with` block began
        self._opener: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        """Open the server.

        DeviceError if the engine is not open, or if this server is open already. TornModelError if the model is torn.
        BudgetError if the share cannot hold its versions of the weights.
        """
        if self._is_open:
            raise DeviceError("the server is open already; enter only one `async with` block, whose end closes it")
        self._opener = asyncio.get_running_loop()
        await self._source.runtime.call(self._open(), undo=lambda _: self._close())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opener is not None:
            await self._finish(kind, self._opener)

    async def aclose(self) -> None:
        """End every remaining request with a DeviceError, and give the cache's memory back.

        It always finishes, however often it is cancelled, and raises CancelledError afterwards.
        """
        await self._finish(None, asyncio.get_running_loop())

    async def _finish(self, kind: type[BaseException] | None, began_on: asyncio.AbstractEventLoop) -> None:
        if self._is_open:
            self._is_open = False
            await self._source.runtime.give_back(self._close, kind, began_on)

    async def publish(self) -> bool:
        """Return whether texts that begin from now on use the weights of the model's last step.

        On the model's own share they always do. On another share, each step is published as it ends, except steps that are too
        short for that. This method publishes the last step now, and waits for a step under way. It returns False if older texts
        still read the version that would be overwritten: there are two versions. TornModelError if the model is torn,
        DeviceError once the server is closed.
        """
        self._check_open()
        return await self._source.runtime.call(self._source.publish())

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
        """Yield the tokens that follow a prompt, one by one. The options are those of `Sampling` and `Stopping`.

        prompt: ids (T,), T below block_size, or text. The last token's finish_reason is "stop" at one of stop_ids or at a
        complete stop string, and "length" after max_new_tokens or at block_size tokens of prompt and text. The same seed gives
        the same text, whatever other requests there are.

        `generate` checks its arguments when it is called, so a service can return 400 before it starts streaming: ValueError or
        TypeError for wrong arguments, BudgetError for a text that the cache cannot hold, DeviceError if the server is not open.
        A text can be broken off at any time: `aclose`, a timeout, a cancellation.
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
            raise TypeError("prompt is a string, and this server has no tokenizer; give token ids, or serve(tokenizer=...)")
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"prompt has {prompt[error.start]!r} at character {error.start}, half of a surrogate pair, which "
                             "cannot be encoded; decode the text as a whole, or with errors='replace'") from None
        return prompt_ids(self._tokenizer, prompt)

    def _wording(self, stopping: Stopping, stop: str | Collection[str], prompt: list[int]) -> Wording:
        if self._tokenizer is None and stop:
            raise ValueError("stop has strings, but this server has no tokenizer to find them; give stop_ids, or "
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
        finally:  # otherwise a training would keep publishing for nobody
            await self._source.close()
