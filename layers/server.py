"""What users call to serve a model: `Server`, made by `Model.serve`. Who is computed when, and with whom, is serving.py's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from asynctile.errors import BudgetError, DeviceError
from asynctile.layers.requests import Request, Token, check_count, check_prompt
from asynctile.layers.sampling import Sampler, Sampling
from asynctile.layers.serving import MOST, Serving, Weights
from asynctile.storage.sizes import format_size, parse_size


class Server:
    """Texts of one model for many at once: `async with model.serve() as server`, then `server.generate(...)` from any loops.

    most: requests that are computed at once; more wait in order of asking. cache: bytes of their keys and values, as an int or
    a string such as "64MiB"; None: as much as `most` texts of block_size tokens take. It is part of what the caps count, and
    taken while there are requests. ValueError or TypeError for other arguments, BudgetError for a cache below one page.
    """

    def __init__(self, weights: Weights, *, most: int = MOST, cache: int | str | None = None) -> None:
        self._weights = weights
        self._serving = Serving(weights, check_count("most", most, 1))
        if cache is not None:
            nbytes, page = parse_size(cache), self._serving.cache.page_nbytes
            if nbytes < page:
                what = f"cache is {format_size(nbytes)}, below a page of {format_size(page)}; raise cache"
                raise BudgetError(what, floor=page)
            self._serving = Serving(weights, most, nbytes // page)
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
        prompt_ids: Sequence[int] | NDArray[Any],
        *,
        max_new_tokens: int = 50,
        temperature: float = 0.8,
        top_k: int | None = 50,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int | None = None,
    ) -> AsyncGenerator[Token]:
        """Yield the tokens that follow prompt_ids (T,), T below block_size, one by one; options are those of `Sampling`.

        The last one says why it is: "length" behind max_new_tokens, or where prompt and text are block_size tokens. The same
        seed gives the same text whoever else asks. ValueError or TypeError for wrong arguments, BudgetError for a text that the
        cache cannot hold, DeviceError if the server is not open. Break off whenever you like: `aclose`, a timeout, a
        cancellation.
        """
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                            repetition_penalty=repetition_penalty, seed=seed)  # fmt: skip
        config = self._weights.parameters.config
        prompt = check_prompt(prompt_ids, config)
        count = min(check_count("max_new_tokens", max_new_tokens, 1), config.block_size - len(prompt))
        if not self._is_open:
            raise DeviceError("the server is not open: use it inside 'async with model.serve()'")
        tokens = self._serving.write(Request(prompt, count, Sampler(sampling)))
        try:
            async for token in tokens:
                yield token
        finally:
            await tokens.aclose()

    async def _open(self) -> None:
        self._weights.check_whole("serve")
        self._is_open = True
