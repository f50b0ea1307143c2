"""Texts for many at once: requests join and leave at each token, and one run of a decode program serves all of them.

While there are requests, a task on the engine's loop makes rounds. A round admits requests that fit, chooses rows
(selection.py), runs a program (decode.py), lets each request choose a token and puts it into the mailbox of its reader, on
whatever loop. If others wait for the share, the task keeps it for as many rounds as they can spare
(asynctile/schedule/allowance.py). No reader owns the task, so a reader who is cancelled, slow or gone disturbs no other. A
request reserves all its pages on one device when it is admitted, so none is ever thrown out, and frees them when it leaves
(caches.py). Requests with different weights share the caches and take turns. Without requests there is no task. source.py has
the weights, server.py and model.py the interface.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from asynctile.errors import AsynctileError, BudgetError, DeviceError, TornModelError
from asynctile.events import CANCELLED, FAILED
from asynctile.layers.batching import BUCKETS
from asynctile.layers.caches import Caches, DeviceCache
from asynctile.layers.decode import record_decode
from asynctile.layers.pages import page_positions
from asynctile.layers.programs import Programs
from asynctile.layers.requests import Reader, Request, Token
from asynctile.layers.selection import Logits, Selection
from asynctile.layers.source import Source, Weights
from asynctile.layers.telling import ToldRequest
from asynctile.loop.thread import BROKEN_OFF, under_shield
from asynctile.program.program import Program
from asynctile.storage.demand import Demand
from asynctile.storage.sizes import format_size

#: How many logits are handled on the loop. For more of them a thread pays off.
AT_ONCE = 1 << 14
#: The default number of requests that are computed at once.
MOST = 16


class Serving:
    """The requests for text of one source: at most `most` are computed at once, others wait in order of asking.

    pages: how many the cache has; None: all that `most` requests can need. keeps: whether the memory of pages stays for later
    requests, until `end`. Everything except `begin` runs on the engine's loop.
    """

    def __init__(self, source: Source, most: int = MOST, pages: int | None = None, *, keeps: bool = False) -> None:
        self._source = source
        self._runtime = source.runtime
        self._most = most
        self._config = source.parameters.config
        whole = -(-self._config.block_size // page_positions(self._config, source.parameters.tiling.tile))
        self.caches = Caches(source.parameters, source.runtime.devices, most * whole if pages is None else pages)
        self._keeps = keeps
        self._most_rows = min(BUCKETS[-1], source.parameters.tiling.row_tokens)
        self._programs = Programs()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        #: the number of running requests at which the next waiting one found no memory for its pages
        self._too_many: int | None = None
        self._task: asyncio.Task[None] | None = None
        #: the error of `end`, for later requests
        self._error: Exception | None = None

    def check_pages(self, request: Request) -> None:
        """Raise BudgetError if the cache has fewer pages than the request takes; from any thread."""
        count = self._pages_for(request.positions)
        if count > self.caches.most:
            floor = count * self.caches.page_nbytes
            raise BudgetError(
                f"a text of {request.positions} positions takes {count} pages of the cache, {format_size(floor)}, but the "
                f"cache has {self.caches.most} pages; raise cache, or ask for fewer tokens", floor=floor,
            )  # fmt: skip

    async def begin(self, request: Request) -> Reader:
        """Return the reader of a request's tokens, from any loop. However reading ends, the request leaves at its next token.

        BudgetError if the caps could never hold it (`check_pages` checks the cache); TornModelError, DeviceError or
        StalledError if the model or the engine fails. This is no async generator: a nested one cannot be ended when its loop is
        thrown away.
        """
        request.loop = asyncio.get_running_loop()
        reader = Reader(request, self._runtime.life.check_process)  # a forked child has no engine loop to write to it
        try:
            await self._runtime.call(self._submit(request))
        except BaseException:
            reader.close()
            raise
        return reader

    def open(self) -> None:
        """Accept requests again after `end`."""
        self._error = None

    async def end(self, error: Exception) -> None:
        """End every request with `error`, also requests that still arrive from other loops.

        Free the cache's memory and the programs that use it.
        """
        self._error = error
        self._fail([*self._running, *self._waiting], error)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        tiles = [tile for cache in self.caches for tile in cache.held]
        for cache in self.caches:
            cache.filled = 0
        await self._runtime.release(tiles)

    def _pages_for(self, positions: int) -> int:
        return -(-positions // self.caches.positions)

    async def _submit(self, request: Request) -> None:
        if self._error is not None:
            raise copy.copy(self._error)
        weights = self._source.newest
        weights.check_whole("generate")
        if self._task is None or self._task.done():
            self._task = self._runtime.begin(self._serve())
            self._task.add_done_callback(self._ended)
        request.weights = weights
        request.told = ToldRequest(self._runtime, weights.name, len(request.tokens))
        weights.readers += 1
        self._waiting.append(request)

    async def _serve(self) -> None:
        """Make rounds until there are no requests."""
        try:
            while self._running or self._waiting:
                await self._rounds()
        except Exception as error:
            self._fail([*self._running, *self._waiting], error)

    async def _rounds(self) -> None:
        """Make one round, and further ones as long as others do not need the share."""
        async with self._runtime.rounds() as go_on:
            while (self._running or self._waiting) and go_on(await self._round()):
                pass
            if not (self._running or self._waiting or self._keeps):
                await self._empty(self.caches.idle())

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # the engine is closing, perhaps before the task had begun
            self._fail([*self._running, *self._waiting], DeviceError(BROKEN_OFF))

    async def _round(self) -> bool:
        """Make one round, inside `rounds`; return whether it gave a token."""
        for request in [request for request in (*self._running, *self._waiting) if request.is_gone]:
            self._leave(request)
        self._part_from_torn()
        await self._admit()
        if not self._running:
            return False
        try:
            wanting = await self._run()
        except Exception as error:
            self._fail(list(self._running), error)
            await self._empty(self.caches.idle())  # what the pages hold may be useless
            return False
        self._runtime.rest()
        await self._choose(wanting)
        return bool(wanting)

    def _part_from_torn(self) -> None:
        """End the requests whose weights were lost, and no others."""
        for weights in {request.weights for request in (*self._running, *self._waiting)}:
            try:
                weights.check_whole("generate")
            except TornModelError as error:
                self._fail([request for request in (*self._running, *self._waiting) if request.weights is weights], error)

    async def _admit(self) -> None:
        """Admit the requests that fit, in order of asking."""
        while self._waiting and len(self._running) < self._most and self._too_many != len(self._running):
            request = self._waiting[0]
            count = self._pages_for(request.positions)
            device = self.caches.device_for(count, [one.device for one in self._running])
            if device is None:
                if await self._empty(self.caches.idle()):
                    continue
                return
            try:
                await self._fill(request.weights, device, self.caches[device].pages.needed(count))
            except BudgetError as error:
                if await self._empty([cache for cache in self.caches.idle() if cache is not self.caches[device]]):
                    continue
                if self._running:  # wait for one of them to leave
                    self._too_many = len(self._running)
                    return
                self._fail([request], error)
                continue
            self._waiting.popleft()
            request.device, request.pages = device, self.caches[device].pages.reserve(count)
            self._running.append(request)
            request.told.begin()

    async def _fill(self, weights: Weights, device: int, pages: int) -> None:
        """Allocate the pages below `pages` on a device. BudgetError, before anything moves, if there is no room for them."""
        cache = self.caches[device]
        if pages <= cache.filled:
            return
        visited = tuple(pages if one is cache else one.pages.visited for one in self.caches)
        program = await self._program(weights, self._most_rows, visited)
        await self._runtime.cut(self._demand(weights, program, visited))
        new = list(cache.tiles.tiles(cache.filled, pages))
        try:
            await self._runtime.fill((tile, np.zeros(tile.shape, tile.dtype)) for tile in new)
        except BaseException:
            await under_shield(self._runtime.empty(new))
            raise
        cache.filled = pages

    async def _empty(self, caches: Sequence[DeviceCache]) -> bool:
        """Free the memory of caches in which no page is taken; return whether there are any."""
        for cache in caches:
            await self._runtime.empty(cache.held)
            cache.filled = 0
        return bool(caches)

    async def _program(self, weights: Weights, rows: int, pages: tuple[int, ...]) -> Program:
        """Return the decode program of these buckets, recorded in a thread if there is none yet. pages: by device."""
        parameters = weights.parameters
        key = (weights, parameters.tuning, rows, pages)
        found = self._programs.kept(key)
        if found is not None:
            return found
        wanted = min(rows, self._most)
        record = partial(record_decode, parameters, self.caches, rows=rows, pages=pages, wanted=wanted)
        return await self._runtime.compute(self._programs.get, key, record)

    def _demand(self, weights: Weights, program: Program, pages: Sequence[int]) -> Demand:
        return weights.demand(program, self.caches.tiles(pages))

    async def _run(self) -> list[tuple[Request, Logits]]:
        """Run, inside `rounds`, rows of requests with the same weights: those of the request that waited longest.

        Return the requests that want a token now, each with its logits.
        """
        weights = max(self._running, key=lambda request: request.waited).weights
        weights.check_whole("generate")
        running = [request for request in self._running if request.weights is weights]
        for request in running:
            if request.version != weights.version:  # keys and values of other weights are useless
                request.version, request.cached = weights.version, 0
        selection = Selection(running, self.caches, self._most_rows)
        program = await self._program(weights, selection.rows, selection.pages)
        wanted, vocabulary = min(selection.rows, self._most), self._config.vocab_size
        logits = np.empty((len(selection.devices), wanted, vocabulary), np.float32)
        demand, outputs = self._demand(weights, program, selection.pages), {"logits": logits.reshape(-1, vocabulary)}
        run = await self._runtime.start(program, demand, selection.inputs(), outputs)
        try:
            await run.finish()
        except BaseException as error:
            await under_shield(weights.abandon(run, error))
            raise
        for request in self._running:
            request.waited += 1
        return selection.count(logits)

    async def _choose(self, wanting: Sequence[tuple[Request, Logits]]) -> None:
        """Choose the next token of each request from its logits."""

        def work() -> list[Token | Exception]:
            return [_chosen(request, logits) for request, logits in wanting]

        at_once = len(wanting) * self._config.vocab_size <= AT_ONCE
        chosen = work() if at_once else await self._runtime.compute(work)
        for (request, _), token in zip(wanting, chosen, strict=True):
            if isinstance(token, Exception):
                self._fail([request], token)
                continue
            request.told.token()
            request.box.put(token)
            if token.finish_reason is not None:
                self._leave(request, token.finish_reason)

    def _leave(self, request: Request, reason: str = CANCELLED, error: str | None = None) -> None:
        """Take the request off the list: it is over."""
        request.told.end(reason, error)
        request.weights.readers -= 1
        if request.pages:
            self._running.remove(request)
            self.caches[request.device].pages.free(request.pages)
            self._too_many = None
        else:
            self._waiting.remove(request)

    def _fail(self, requests: Iterable[Request], error: Exception) -> None:
        """End the requests with `error`. Each gets a copy, because raising an exception adds to it."""
        if not isinstance(error, AsynctileError):
            error = DeviceError(f"the next token could not be computed: {error!r}; send the request again")
        for request in requests:
            self._leave(request, FAILED, str(error))
            request.box.close(copy.copy(error))


def _chosen(request: Request, logits: Logits) -> Token | Exception:
    try:
        return request.choose(logits)
    except Exception as error:
        return error
