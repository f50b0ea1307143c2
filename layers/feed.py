"""The batches that a training takes from a caller's iterable: one at a time, in order, only when asked, off the caller's loop.

A plain iterable is advanced in a thread of its own, always the same one, in one copy of the context that the run began in. It
is never advanced ahead: where it stands is behind the batch that was given last. The thread ends with the batches, with the
run, or with the engine. What is done with batches is trainer.py's.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import ArrayLike

from asynctile.layers.batch import Batch, Batches
from asynctile.layers.guesses import by_async_for
from asynctile.layers.notebook import StepBar
from asynctile.layers.report import StepReport
from asynctile.share import Share
from asynctile.streams.event import resolve
from asynctile.threads import start

#: A step on (tokens, targets), which calls the first argument once it has counted.
Step = Callable[[Callable[[], None], ArrayLike, ArrayLike], Awaitable[StepReport]]
#: Called with how many steps were made, and how many were asked for, where the batches end before.
Ended = Callable[[int, int], object]
_END = object()
#: The end of a caller's iterator (its `finally`) may take so long before its thread is left behind.
PATIENCE_S = 1.0


class Feed:
    """`await take()` until it raises StopAsyncIteration, or until `end`. TypeError if `batches` is no iterable.

    has_ended: it is over since the batches came to their end.
    """

    def __init__(self, batches: Batches) -> None:
        self.is_over = self.has_ended = False
        self._items: AsyncIterator[Any] | None = None
        #: an item that was asked for; a caller that is cancelled leaves it to the next
        self._taken: Future[Any] | asyncio.Future[Any] | None = None
        if isinstance(batches, AsyncIterable):
            self._items = aiter(batches)
        elif isinstance(batches, Iterable):
            self._wishes: queue.SimpleQueue[Future[Any] | None] = queue.SimpleQueue()
            self._dismiss = weakref.finalize(self, self._wishes.put, None)
            self._dismiss.atexit = False
            #: no wish is put behind the last, which nobody would serve: an engine closes from another thread
            self._gate = threading.Lock()
            work = partial(copy_context().run, _serve, batches, self._wishes)
            self._thread = threading.Thread(target=work, name="asynctile-batches", daemon=True)
            start(self._thread)
        else:
            raise TypeError(f"batches is {type(batches).__name__}, expected an iterable of (tokens, targets)")

    async def take(self) -> Batch:
        """The next item, awaited if it is an awaitable. Cancelled, it is not lost: the next call gets it."""
        if self._taken is None:
            self._taken = self._ask()
        while True:
            taken = self._taken
            await _over(taken)
            self._taken = None
            item = taken.result()
            if isinstance(item, BaseException):
                raise item
            if item is _END:
                self.has_ended = True
                self.end()
                raise StopAsyncIteration
            if not inspect.isawaitable(item):
                return item
            self._taken = asyncio.ensure_future(item)

    def end(self) -> None:
        """Give no more items. The thread ends behind the item that it is at; from any thread."""
        self.is_over = True
        if self._items is None:
            with self._gate:
                self._dismiss()

    def close(self) -> None:
        """`end`, and the thread has ended unless it is at an item. From any thread; blocks for a moment."""
        self.end()
        if self._items is None and self._taken is None:
            self._thread.join(PATIENCE_S)

    def _ask(self) -> Future[Any] | asyncio.Future[Any]:
        """Of the thread, or of a task of its own: a cancellation would end an async generator."""
        if self.is_over:
            raise StopAsyncIteration
        if self._items is not None:
            return asyncio.ensure_future(anext(self._items, _END))
        with self._gate:
            if self.is_over:
                raise StopAsyncIteration
            wish: Future[Any] = Future()
            self._wishes.put(wish)
            return wish


class Steps:
    """What Trainer.run returns: `async for` over reports. Cancelled, it can be gone on with: no batch is lost or used twice."""

    def __init__(self, engine: Share, step: Step, batches: Batches, steps: int | None, ended: Ended) -> None:
        self._engine = engine
        self._step = step
        self._feed = Feed(batches)
        engine.dependents.add(self._feed)
        self._left = self._asked = steps
        self._ended = ended
        #: taken, and no step with it has counted
        self._batch: Batch | None = None
        #: once the first step is asked for
        self._bar: StepBar | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StepReport:
        self._engine.check_process()  # a forked child has no thread that would give it a batch
        if self._bar is None:
            self._bar = StepBar(self._left)
        if self._left is not None and self._left <= 0:
            await self.aclose()
            raise StopAsyncIteration
        if self._batch is None:
            self._batch = await self._next()
        try:
            report = await self._step(self._used, *self._batch)
        except asyncio.CancelledError:
            raise  # the batch is the next one, unless its step has counted
        except BaseException:
            self._batch = None
            raise
        if report.skipped:
            self._used()
        self._bar.step(report)
        return report

    async def aclose(self) -> None:
        """Take no more batches."""
        self._left = 0
        self._feed.end()
        if self._bar is not None:
            self._bar.close()

    async def _next(self) -> Batch:
        try:
            return pair(await self._feed.take())
        except StopAsyncIteration:
            if self._feed.has_ended and self._left and self._asked is not None:
                self._ended(self._asked - self._left, self._asked)
                self._left = 0
            if self._bar is not None:
                self._bar.close()
            raise

    if not TYPE_CHECKING:
        __iter__ = by_async_for

    def _used(self) -> None:
        """The step with the batch has counted, whoever is cancelled; or it was skipped."""
        self._batch = None
        if self._left is not None:
            self._left -= 1


def pair(item: Any) -> Batch:
    """TypeError if an item of the caller's batches is no batch."""
    if not isinstance(item, Mapping):  # whose keys would pass for arrays
        with suppress(TypeError, ValueError):
            tokens, targets = item
            return tokens, targets
    what = f"{len(item)} parts" if isinstance(item, tuple | list) else f"type {type(item).__name__}"
    raise TypeError(f"a batch is of {what}, expected the two arrays (tokens, targets), both of shape (B, T)")


async def _over(taken: Future[Any] | asyncio.Future[Any]) -> None:
    """Wait until it is done; a cancellation leaves it as it is."""
    if isinstance(taken, asyncio.Future):
        await asyncio.wait([taken])
        return
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(resolve, ready)

    taken.add_done_callback(tell)  # one turn of the loop, where a wrapped future takes three
    await ready


def _serve(batches: Iterable[Any], wishes: queue.SimpleQueue[Future[Any] | None]) -> None:
    """In the thread: an item, or an error, for each wish. An iterator that was made here ends here."""
    items = None
    while (wish := wishes.get()) is not None:
        try:
            items = iter(batches) if items is None else items
            wish.set_result(next(items, _END))
        except BaseException as error:
            wish.set_result(error)  # as a result: no future takes every error
        del wish
