"""What has been enqueued and not yet been seen to end: how far the host may run ahead, and the watchdog over it.

Runs on the device's loop only. Every wait for work that was enqueued, and for what somebody else holds (a lock, RAM that is
lent, an input), passes through here, so that cannot hang without a word: when no stream has finished anything for
`patience_s`, the wait ends with an error that says who waits for whom. File work is watched by files.py in the same way. What
waits for a task, a thread or another loop need not be: all that these wait for is watched, so they end. Whatever any stream of
the device finishes counts as moving, be it for another share: a wait for what hangs ends as soon as nothing at all moves there.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from asynctile.errors import StalledError
from asynctile.events import STALL, Fault, Waiting
from asynctile.hub import UNHEARD, Tell
from asynctile.program.grain import FINE
from asynctile.streams.event import Runner, StreamEvent, resolve
from asynctile.streams.stall import describe

#: The host runs at most this far ahead of the device: so it sleeps, and leaves the interpreter to the workers. Of operations
#: where nobody says more (Grain.run_ahead); with several shares never more, as what was enqueued runs in the turn of others.
RUN_AHEAD_OPERATIONS = FINE.run_ahead
RUN_AHEAD_NBYTES = 512 << 20
#: How often the watchdog looks before its patience ends.
LOOKS = 4
#: Seconds from which on a wait for what somebody else holds is told of.
LONG_S = 1.0


class Looks:
    """Whether a counter of what has moved stands still, by looks at it every quarter of the patience.

    Looks, not a clock: a loop that was held up for long by somebody else's Python has not waited for long.
    """

    def __init__(self, patience_s: float | None, moved: Callable[[], int]) -> None:
        self.every_s = None if patience_s is None else patience_s / LOOKS
        self._moved = moved
        self._seen = moved()
        self._same = 0

    def has_stood_still(self, *, computing: bool = False) -> bool:
        """Look once more: whether it has stood still for as long as patience lasts. computing: something moves unseen."""
        seen, self._seen = self._seen, self._moved()
        self._same = self._same + 1 if seen == self._seen and not computing else 0
        return self._same >= LOOKS


class RunAhead:
    """Events in the order in which they were enqueued.

    streams: all that work may run on, for the watchdog. patience_s: None for no watchdog. tell: of what is waited for long.
    most: operations that may be under way, at least RUN_AHEAD_OPERATIONS.
    stalled: the error of the watchdog once it has spoken of enqueued work. Nothing is waited for any more then: what hangs
    may hang on. hangs: something does, be it a file of a save, which is no reason to stop. waited_s: seconds that jobs have
    waited for what others hold, summed over the waits that are over.
    """

    def __init__(
        self,
        streams: Callable[[], Sequence[Runner]],
        patience_s: float | None,
        tell: Tell = UNHEARD,
        most: Callable[[], int] = lambda: RUN_AHEAD_OPERATIONS,
    ) -> None:
        self.patience_s = patience_s
        self.tell = tell
        self.stalled: StalledError | None = None
        self.hangs = False
        self.waited_s = 0.0
        #: pieces of Python that compute in threads: they move, and end, though no stream shows it
        self.computing = 0
        self._streams = streams
        self._most = most
        self._events: deque[tuple[StreamEvent, int]] = deque()
        #: operations of the host: seldom does the device wait for one, so a slow one does not hold up what is issued to it
        self._beside: deque[StreamEvent] = deque()
        self._operations = 0
        self._nbytes = 0

    def add(self, event: StreamEvent, nbytes: int = 0, *, beside: bool = False) -> None:
        """An operation, or a copy of `nbytes`, was enqueued. beside: an operation of the host, next to a device's."""
        if beside:
            self._beside.append(event)
            return
        self._events.append((event, nbytes))
        if nbytes:
            self._nbytes += nbytes
        else:
            self._operations += 1

    def is_full(self) -> bool:
        """Whether the host has enqueued as much as it may, in operations of either kind or in bytes to be copied."""
        return (
            (self._operations >= RUN_AHEAD_OPERATIONS and self._operations >= self._most())
            or self._nbytes > RUN_AHEAD_NBYTES
            or len(self._beside) >= RUN_AHEAD_OPERATIONS
        )

    def is_full_of_bytes(self) -> bool:
        """Whether as many bytes are on their way as may be."""
        return self._nbytes > RUN_AHEAD_NBYTES

    @property
    def is_behind(self) -> bool:
        """Whether something that was enqueued has yet to run, as far as it is known."""
        return bool(self._events) and not self._events[-1][0].done

    async def room(self) -> None:
        """Wait until the host is within its limit again; raises the error of work that failed."""
        self.forget_done()
        while self.is_full():
            if len(self._beside) >= RUN_AHEAD_OPERATIONS:
                head, middle = self._beside[0], self._beside[len(self._beside) // 2]
            else:
                head, middle = self._events[0][0], self._events[len(self._events) // 2][0]
            # Streams overtake each other: while the head is not done, waiting for a middle that is would spin.
            await self.settled(head if middle.done else middle)
            self.forget_done()

    async def drain(self) -> None:
        """Wait until everything that was enqueued has run; raises the first error among it."""
        failed: BaseException | None = None
        while self._events:
            event, nbytes = self._events[0]
            await self.settled(event)
            failed = failed or event.error
            if self._events and self._events[0][0] is event:  # nobody else dropped it meanwhile
                self._drop(nbytes)
        while self._beside:
            event = self._beside[0]
            await self.settled(event)
            failed = failed or event.error
            if self._beside and self._beside[0] is event:
                self._beside.popleft()
        if failed is not None:
            raise failed

    async def settle(self) -> None:
        """Wait until everything that was enqueued has run, well or not: its events say how. After a stall, for nothing."""
        while (self._events or self._beside) and self.stalled is None:
            try:
                await self.drain()
            except Exception:  # drain has emptied all before it raises
                continue

    async def landed(self, event: StreamEvent) -> None:
        """Wait until `event` is done; raises the error of its work."""
        await self.settled(event)
        if event.error is not None:
            raise event.error

    async def settled(self, event: StreamEvent) -> None:
        """Wait until `event` is done, well or not. StalledError when nothing has moved for too long."""
        if self.stalled is not None:
            raise self.stalled
        if not event.done and not await self._patiently(event.resolves, lambda: event.done):
            self.hangs = True
            self.stalled = self.stall(describe(self._streams(), self.patience_s or 0.0))
            raise self.stalled

    async def told(self, future: asyncio.Future[None], otherwise: Callable[[], str]) -> None:
        """Wait for a future that somebody else resolves. StalledError, which says `otherwise`, when nothing moves meanwhile.

        Only this wait is given up: what others hold, or leave out, is no fault of the engine.
        """
        began, text = time.monotonic(), ""

        def tell_of_it() -> None:
            nonlocal text
            text = otherwise()
            self.tell(Waiting, text=text, seconds=time.monotonic() - began, is_over=False)

        timer = asyncio.get_running_loop().call_later(LONG_S, tell_of_it)
        try:
            if not await self._patiently(lambda woken: future.add_done_callback(lambda _: resolve(woken)), future.done):
                raise self.stall(f"nothing has moved for {self.patience_s:g} s: {otherwise()}")
        finally:
            timer.cancel()
            waited_s = time.monotonic() - began
            self.waited_s += waited_s
            if text:
                self.tell(Waiting, text=text, seconds=waited_s, is_over=True)

    def stall(self, text: str) -> StalledError:
        """The error of a wait that is given up, told of."""
        self.tell(Fault, kind=STALL, text=text)
        return StalledError(text)

    async def _patiently(self, wakes: Callable[[asyncio.Future[None]], object], is_done: Callable[[], bool]) -> bool:
        """Wait until `is_done`; False if nothing at all has moved for as long as patience lasts. wakes: resolves a future then.

        By a timer of its own: asyncio.timeout takes as long as all the rest of a wait, of which a replayed step has a few.
        """
        looks = Looks(self.patience_s, lambda: sum([stream.finished for stream in self._streams()]))
        loop = asyncio.get_running_loop()
        while not is_done():
            woken: asyncio.Future[None] = loop.create_future()
            wakes(woken)
            timer = None if looks.every_s is None else loop.call_later(looks.every_s, resolve, woken)
            try:
                await woken
            finally:
                if timer is not None:
                    timer.cancel()
            if not is_done() and looks.has_stood_still(computing=self.computing > 0):
                return False
        return True

    def forget_done(self) -> None:
        """Drop what has run from the front; raises the error of work that failed."""
        while self._events and self._events[0][0].done:
            event, nbytes = self._events[0]
            self._drop(nbytes)
            if event.error is not None:
                raise event.error
        while self._beside and self._beside[0].done:
            event = self._beside.popleft()
            if event.error is not None:
                raise event.error

    def _drop(self, nbytes: int) -> None:
        self._events.popleft()
        if nbytes:
            self._nbytes -= nbytes
        else:
            self._operations -= 1
