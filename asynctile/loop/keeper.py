"""The thread in which an engine is opened and closed, and the wait of a caller's loop for that work.

The thread starts before anything else and ends after the engine is closed. So closing never asks the system for a new
thread, which the system may refuse. What runs in the thread is asynctile/lifetime.py.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from asynctile.streams.event import resolve
from asynctile.threads import start


class Keeper:
    """A thread for opening and closing: the `first` work starts it, the `last` work ends it."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="asynctile-keeper", daemon=True)

    def first(self, work: Callable[[], None]) -> Future[None]:
        """Start the thread and run `work` in it; return a future that resolves at the end of the work, or with its error.

        DeviceError if the system refuses the thread.
        """
        start(self._thread)
        end: Future[None] = Future()
        self._work.put((work, end))
        return end

    def last(self, work: Callable[[], None], end: Future[None]) -> None:
        """Run `work` after the first work, then end the thread. `end` resolves when `work` has ended, or with its error.

        If nothing came first, there is no thread, and `work` runs here and now.
        """
        if self._thread.ident is None:
            _run(work, end)
        else:
            self._work.put((work, end))
            self._work.put(None)

    def join(self) -> None:
        """Wait for the idle thread to exit. Call after the last work has ended."""
        if self._thread.ident is not None:
            self._thread.join()

    def _serve(self) -> None:
        while (piece := self._work.get()) is not None:
            _run(*piece)
            del piece  # an idle thread must not hold an engine


def _run(work: Callable[[], None], end: Future[None]) -> None:
    try:
        work()
    except BaseException as error:
        end.set_exception(error)
    else:
        end.set_result(None)


async def ended(
    end: Future[None], on_cancel: Callable[[], object] = bool, on_gone: Callable[[], object] = bool
) -> bool:
    """Wait until `end` is done, however often the caller is cancelled; return whether it was. Its error is not raised.

    Nothing on the caller's loop can interrupt this wait. A task on that loop could be interrupted, since closing a loop
    cancels all its tasks. A thread of that loop may not be free: all of them may wait for this very work.

    on_cancel: called at the first cancellation.
    on_gone: called, once or twice, if nobody waits any more because the caller's loop has been closed.
    """
    here = asyncio.get_running_loop()
    done: asyncio.Future[None] = here.create_future()

    def tell(_: Future[None]) -> None:
        try:
            here.call_soon_threadsafe(resolve, done)
        except RuntimeError:
            on_gone()

    end.add_done_callback(tell)
    cancelled = False
    while not done.done():
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            if not cancelled:
                on_cancel()
            cancelled = True
        except GeneratorExit:
            on_gone()
            raise
    return cancelled
