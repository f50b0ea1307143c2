"""Files of saves and loads: blocking work in threads that the engine can leave behind, under the watchdog.

The device's loop hands each piece of file work (writing a tile, a sync, a checksum) to a stream. So the watchdog sees
whether file work moves, and names it in a message if it hangs. A disk that does not answer delays neither the closing of the
engine nor the exit of the process, as work in the default threads of an event loop would.

Tiles that leave RAM for the spill file go through asynctile/memory/spill_link.py instead.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from asynctile.errors import StalledError
from asynctile.storage.documents import finish
from asynctile.streams.event import StreamEvent, unfinished
from asynctile.streams.run_ahead import Looks, RunAhead
from asynctile.streams.stream import Stream

P = ParamSpec("P")
T = TypeVar("T")

#: Pieces of different saves and loads that run at once. The pieces of one save or load run one after another.
THREADS = 4


class Files(Executor):
    """The file work of one save or load, piece after piece, on `stream`. what: the save or load, for messages.

    stalled: the watchdog's error once it has given up. Pieces submitted after that, to clean up, still run once the
        hanging piece has ended, but nobody waits for them: their futures raise `stalled` at once.
    """

    def __init__(self, stream: Stream, run_ahead: RunAhead, what: str) -> None:
        self.what = what
        self.stalled: StalledError | None = None
        self._stream = stream
        self._run_ahead = run_ahead
        self._last: StreamEvent | None = None
        self._lock = threading.Lock()
        self._unfinished: set[Future[Any]] = set()
        self._looks = Looks(run_ahead.patience_s, lambda: stream.finished)
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Run `work` in a thread and return its result.

        StalledError when no file work has moved for as long as the watchdog waits. A cancelled caller still waits until
        the work has ended. Then it raises CancelledError, or the error of the work.
        """
        return await finish(asyncio.wrap_future(self.submit(work, *args, **more)))

    def tick(self) -> None:
        """Show the watchdog that a long piece of work moves; the piece itself calls this."""
        self._stream.tick()

    def submit(self, work: Callable[P, T], /, *args: P.args, **more: P.kwargs) -> Future[T]:
        """Enqueue `work` and return its future, which cannot be cancelled. Call on the device's loop."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def file_work() -> None:
            try:
                result = work(*args, **more)
            except BaseException as error:
                self._settle(future, partial(future.set_exception, error))
            else:
                self._settle(future, partial(future.set_result, result))

        after = () if self._last is None else unfinished(self._last)
        self._last = self._stream.enqueue((), file_work, (), after=after, what=self.what)
        if self.stalled is not None:
            self._settle(future, partial(future.set_exception, self.stalled))
        else:
            self._unfinished.add(future)
            self._watch()
        return future

    def _settle(self, future: Future[Any], how: Callable[[], None]) -> None:
        """Settle the future unless it is settled: the work and the watchdog race, and the first one counts."""
        with self._lock:
            if not future.done():
                how()

    def _watch(self) -> None:
        """Schedule the watchdog's next look, if a piece is unfinished and no look is scheduled."""
        self._unfinished = {future for future in self._unfinished if not future.done()}
        if self._timer is None and self._unfinished and self._looks.every_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._looks.every_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._unfinished and self._looks.has_stood_still():
            self._give_up()
        self._watch()

    def _give_up(self) -> None:
        self._run_ahead.hangs = True
        self.stalled = self._run_ahead.stall(
            f"nothing has moved for {self._run_ahead.patience_s:g} s: {self.what} waits for its disk, which does not answer; "
            "check that disk, or save to or load from another; training may go on"
        )
        for future in self._unfinished:
            self._settle(future, partial(future.set_exception, self.stalled))
