"""What users call to serve a model: `Server`, made by `Model.serve`. Who is computed when, and with whom, is serving.py's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from asynctile.errors import BudgetError, DeviceError
from asynctile.layers.requests import Request, Token, check_count, check_prompt
from asynctile.layers.sampling import Sampler, Sampling
from asynctile.layers.serving import MOST, Serving, Weights
from asynctile.layers.special_tokens import check_fit
from asynctile.layers.stopping import Stopping
from asynctile.layers.tokenizer import Tokenizer
from asynctile.layers.wording import Wording
from asynctile.storage.sizes import format_size, parse_size


class Server:
    """Texts of one model for many at once: `async with model.serve() as server`, then `server.generate(...)` from any loops.

    most: requests that are computed at once; more wait in order of asking. cache: bytes of their keys and values, as an int or
    a string such as "64MiB"; None: as much as `most` texts of block_size tokens take. It is part of what the caps count, and
    taken as requests need it, and kept until the server is closed. tokenizer: that of the model, for text instead of ids.
    ValueError or TypeError for other arguments or another model's tokenizer, BudgetError for a cache below one page.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        most: int = MOST,
        cache: int | str | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self._weights = weights
        self._tokenizer = tokenizer
        if tokenizer is not None:
            check_fit(tokenizer, weights.parameters.config.vocab_size, "the model that is to be served")
        self._serving = Serving(weights, check_count("most", most, 1), keeps=True)
        if cache is not None:
            nbytes, page = parse_size(cache), self._serving.cache.page_nbytes
            if nbytes < page:
                what = f"cache is {format_size(nbytes)}, below a page of {format_size(page)}; raise cache"
                raise BudgetError(what, floor=page)
            self._serving = Serving(weights, most, nbytes // page, keeps=True)
        self._is_open = False

    async def __aenter__(self) -> Self:
        """DeviceError if the engine is not open; TornModelError if the weights are of no single step."""
        await self._weights.engine.call(self._open())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not GeneratorExit:  # thrown away, with its loop, it may not wait: requests end by themselves
            await self.aclose()

    async def aclose(self) -> None:
        """End every request that is left with a DeviceError, and give the memory of the cache back."""
        if self._is_open:
            self._is_open = False
            await self._weights.engine.call(self._serving.end(DeviceError("the server was closed while this text was written; "
                                                                          "close it when all texts have ended")))  # fmt: skip

    async def generate(
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
        ValueError or TypeError for wrong arguments, BudgetError for a text that the cache cannot hold, DeviceError if the
        server is not open. Break off whenever you like: `aclose`, a timeout, a cancellation.
        """
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                            repetition_penalty=repetition_penalty, seed=seed)  # fmt: skip
        config = self._weights.parameters.config
        ids = check_prompt(self._encoded(prompt) if isinstance(prompt, str) else prompt, config)
        count = min(check_count("max_new_tokens", max_new_tokens, 1), config.block_size - len(ids))
        wording = self._wording(Stopping(stop_ids, stop), stop, ids)
        if not self._is_open:
            raise DeviceError("the server is not open: use it inside 'async with model.serve()'")
        reader = await self._serving.begin(Request(ids, count, Sampler(sampling), wording))
        try:
            async for token in reader:
                yield token
        finally:
            reader.close()

    def _encoded(self, prompt: str) -> NDArray[Any]:
        if self._tokenizer is None:
            raise TypeError("prompt is a text, and this server has no tokenizer; give token ids, or serve(tokenizer=...)")
        return self._tokenizer.encode(prompt).astype(np.int64)

    def _wording(self, stopping: Stopping, stop: str | Collection[str], prompt: list[int]) -> Wording:
        if self._tokenizer is None and stop:
            raise ValueError("stop has strings, and this server has no tokenizer to find them; give stop_ids, or "
                             "serve(tokenizer=...)")
        return Wording(stopping, self._tokenizer, prompt)

    async def _open(self) -> None:
        self._weights.check_whole("serve")
        self._is_open = True
