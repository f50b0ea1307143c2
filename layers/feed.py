"""The batches of a caller's iterable: taken one at a time, in order, only on demand, and off the caller's loop.

A plain iterable is advanced in its own thread, always the same one, in one copy of the context in which the run began. It never
runs ahead: its position is right after the batch that was given last. The thread ends with the batches, with the run, or with
the engine. trainer.py uses the batches.
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

from asynctile.layers.batch import Batch, Batches
from asynctile.layers.guesses import by_async_for
from asynctile.layers.notebook import StepBar
from asynctile.layers.report import StepReport
from asynctile.lifetime import Lifetime
from asynctile.streams.event import resolve
from asynctile.threads import start

#: A step on a batch's arrays. It calls its first argument as soon as the step counts.
Step = Callable[..., Awaitable[StepReport]]
#: Called with the number of steps made and the number asked for, if the batches end early.
Ended = Callable[[int, int], object]
_END = object()
#: How long the end of a caller's iterator (its `finally`) may take before its thread is left behind.
PATIENCE_S = 1.0


class Feed:
    """The items of `batches`, through `await take()`, until StopAsyncIteration or `end`. TypeError if it is not iterable.

    is_over: whether no more items are given. has_ended: whether that is because the batches came to their end.
    """

    def __init__(self, batches: Batches) -> None:
        self.is_over = self.has_ended = False
        self._items: AsyncIterator[Any] | None = None
        #: an item that was asked for; a cancelled caller leaves it to the next caller
        self._taken: Future[Any] | asyncio.Future[Any] | None = None
        if isinstance(batches, AsyncIterable):
            self._items = aiter(batches)
        elif isinstance(batches, Iterable):
            self._wishes: queue.SimpleQueue[Future[Any] | None] = queue.SimpleQueue()
            self._dismiss = weakref.finalize(self, self._wishes.put, None)
            self._dismiss.atexit = False
            #: keeps wishes from being queued after the dismissal, where none is served: an engine closes from another thread
            self._gate = threading.Lock()
            work = partial(copy_context().run, _serve, batches, self._wishes)
            self._thread = threading.Thread(target=work, name="asynctile-batches", daemon=True)
            start(self._thread)
        else:
            raise TypeError(f"batches is {type(batches).__name__}, expected an iterable of (tokens, targets)")

    async def take(self) -> Batch:
        """Return the next item, awaited if it is an awaitable. A cancelled call loses no item: the next call gets it."""
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
        """Give no more items, from any thread. The feed's thread ends after the item that it is working on."""
        self.is_over = True
        if self._items is None:
            with self._gate:
                self._dismiss()

    def close(self) -> None:
        """End the feed and wait up to PATIENCE_S for its thread, unless that is at an item. From any thread; blocks briefly."""
        self.end()
        if self._items is None and self._taken is None:
            self._thread.join(PATIENCE_S)

    def _ask(self) -> Future[Any] | asyncio.Future[Any]:
        """Request the next item and return its future; StopAsyncIteration if the feed is over.

        A plain iterator is advanced in the feed's thread, an async iterator in a task of its own. If the caller awaited an
        async generator directly, a cancellation of the caller would end the generator.
        """
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
    """The result of Trainer.run: `async for` over reports.

    A cancelled iteration can be continued: no batch is lost or used twice.
    """

    def __init__(self, life: Lifetime, step: Step, batches: Batches, steps: int | None, ended: Ended) -> None:
        self._life = life
        self._step = step
        self._feed = Feed(batches)
        life.dependents.add(self._feed)
        self._left = self._asked = steps
        self._ended = ended
        #: the batch that was taken and has not been counted by a step
        self._batch: Batch | None = None
        #: the progress bar, from the first step on
        self._bar: StepBar | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StepReport:
        self._life.check_process()  # a forked child has no feed thread
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
            raise  # the next call uses this batch again, unless its step has counted
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
            return arrays_of(await self._feed.take())
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
        """Drop the batch: its step has counted, even if the caller was cancelled, or was skipped."""
        self._batch = None
        if self._left is not None:
            self._left -= 1


def arrays_of(item: Any) -> Batch:
    """Return (tokens, targets) or (tokens, targets, positions) from an item of the caller's batches; TypeError for another."""
    if not isinstance(item, Mapping):  # the keys of a mapping would pass for arrays
        with suppress(TypeError, ValueError):
            tokens, targets, *positions = item
            if len(positions) < 2:
                return tokens, targets, *positions
    what = f"{len(item)} parts" if isinstance(item, tuple | list) else f"type {type(item).__name__}"
    raise TypeError(f"a batch has {what}, expected the two arrays (tokens, targets), or three with positions, of shape (B, T)")


async def _over(taken: Future[Any] | asyncio.Future[Any]) -> None:
    """Wait until `taken` is done. A cancellation leaves it running."""
    if isinstance(taken, asyncio.Future):
        await asyncio.wait([taken])
        return
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # raised if the loop has been closed
            loop.call_soon_threadsafe(resolve, ready)

    taken.add_done_callback(tell)  # takes one turn of the loop; a wrapped future takes three
    await ready


def _serve(batches: Iterable[Any], wishes: queue.SimpleQueue[Future[Any] | None]) -> None:
    """Answer each wish with an item or an error, in the feed's thread. An iterator that was made here ends here."""
    items = None
    while (wish := wishes.get()) is not None:
        try:
            items = iter(batches) if items is None else items
            wish.set_result(next(items, _END))
        except BaseException as error:
            wish.set_result(error)  # as a result: a future does not accept every exception
        del wish
