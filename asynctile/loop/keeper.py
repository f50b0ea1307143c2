"""The thread that an engine is opened and closed in, and what awaits its work there.

It is started before anything else and ends behind the closing: no end of an engine asks the system for a thread, which may
refuse it. What it does is lifetime.py's.
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
    """The `first` work starts the thread, the `last` ends it."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="asynctile-keeper", daemon=True)

    def first(self, work: Callable[[], None]) -> Future[None]:
        """Run `work` in the thread; its end, with its error. DeviceError if the system refuses the thread."""
        start(self._thread)
        end: Future[None] = Future()
        self._work.put((work, end))
        return end

    def last(self, work: Callable[[], None], end: Future[None]) -> None:
        """Run `work` behind the first; `end` is its end. Here and now where there is no thread, since nothing came first."""
        if self._thread.ident is None:
            _run(work, end)
        else:
            self._work.put((work, end))
            self._work.put(None)

    def join(self) -> None:
        """Behind the end of the last work: wait for the thread, which does nothing any more."""
        if self._thread.ident is not None:
            self._thread.join()

    def _serve(self) -> None:
        while (piece := self._work.get()) is not None:
            _run(*piece)
            del piece  # a thread that rests must not hold an engine


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
    """Wait until `end` is done, however often cancelled; whether it was. Raises no error of it.

    Nothing on the caller's loop can break it off. A task there would be: whoever ends a loop cancels all its tasks. And the
    threads of that loop may all be busy with what waits for this very work. on_cancel: called at the first cancellation.
    on_gone: called, once or twice, if nobody waits any more since the loop has been closed.
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
