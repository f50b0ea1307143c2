"""Enqueued work that has not been seen to end: how much of it there may be, and the watchdog over it.

Everything here runs on the device's loop. Every wait for enqueued work passes through here, and so does every wait for
something that another job holds: a lock, lent RAM, an input. So no wait hangs silently. When no stream has finished
anything for `patience_s`, the wait ends with an error that says who waits for whom.

- Everything that any stream of the device finishes counts as movement, for whichever share. So a wait is given up only
  when nothing at all moves on the device.
- A wait for a task, a thread or another loop needs no watchdog: everything that these wait for is watched, so they end.
- asynctile/loop/files.py watches file work in the same way.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from asynctile.errors import StalledError
from asynctile.events import STALL, Fault, Waiting
from asynctile.hub import UNHEARD, Tell
from asynctile.program.grain import FINE
from asynctile.streams.event import Runner, StreamEvent, resolve
from asynctile.streams.stall import describe

#: The host runs at most this many operations ahead of each device, and this many bytes ahead of all. At the limit it sleeps and
#: leaves the interpreter to the workers. A device may allow more operations (Grain.run_ahead), but not while several shares
#: take turns: enqueued work would run in the turn of another share.
RUN_AHEAD_OPERATIONS = FINE.run_ahead
RUN_AHEAD_NBYTES = 512 << 20
#: Number of times that the watchdog looks before its patience ends.
LOOKS = 4
#: A wait for something that another job holds is reported after this many seconds.
LONG_S = 1.0


class Looks:
    """The watchdog's looks at a counter of finished work, every quarter of the patience, to see whether it stands still.

    Looks are counted, not seconds: a loop that other Python code held up for long has not waited for long.
    """

    def __init__(self, patience_s: float | None, moved: Callable[[], int]) -> None:
        self.every_s = None if patience_s is None else patience_s / LOOKS
        self._moved = moved
        self._seen = moved()
        self._same = 0

    def has_stood_still(self, *, computing: bool = False) -> bool:
        """Look once more; return whether the counter has stood still for the whole patience.

        computing: whether work that the counter does not show is under way; then this look counts as movement.
        """
        seen, self._seen = self._seen, self._moved()
        self._same = self._same + 1 if seen == self._seen and not computing else 0
        return self._same >= LOOKS


class RunAhead:
    """Events of enqueued work, in the order in which it was enqueued.

    streams: returns every runner that work may run on, for the watchdog.
    patience_s: seconds after which the watchdog gives up; None for no watchdog.
    tell: reports stalls and long waits as events.
    most: returns how many operations of a device may be under way; RUN_AHEAD_OPERATIONS are always allowed.
    stalled: the watchdog's error once enqueued work has stalled. From then on nobody waits for such work: it may hang
        for ever.
    hangs: whether anything hangs. File work of a save counts too, though it is no reason to stop.
    waited_s: seconds that jobs have waited for things that other jobs hold, summed over the waits that have ended.
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
        #: number of Python functions that compute in threads: they make progress and end, though no stream shows it
        self.computing = 0
        self._streams = streams
        self._most = most
        #: event, bytes and device of each piece
        self._events: deque[tuple[StreamEvent, int, int]] = deque()
        #: operations of the host, counted apart: the device seldom waits for one, so a slow one must not hold up device work
        self._beside: deque[StreamEvent] = deque()
        #: tiles on their way to and from other nodes, in no limit: one may wait for work that is not enqueued yet
        self._away: deque[StreamEvent] = deque()
        #: number of operations by device: a device that waits for another one must not hold it up
        self._operations: defaultdict[int, int] = defaultdict(int)
        self._nbytes = 0

    def add(
        self, event: StreamEvent, nbytes: int = 0, *, device: int = 0, beside: bool = False, away: bool = False
    ) -> None:
        """Add the event of an enqueued operation of a device, or of a copy of `nbytes` bytes.

        beside: whether it is an operation of the host, which runs beside the device's. away: whether it is a transfer to or
        from another node.
        """
        if beside or away:
            (self._away if away else self._beside).append(event)
            return
        self._events.append((event, nbytes, device))
        if nbytes:
            self._nbytes += nbytes
        else:
            self._operations[device] += 1

    def is_full(self, device: int = 0) -> bool:
        """Return whether the host is at one of its limits: operations of this device or of the host, or bytes to copy."""
        operations = self._operations[device]
        return (
            (operations >= RUN_AHEAD_OPERATIONS and operations >= self._most())
            or self._nbytes > RUN_AHEAD_NBYTES
            or len(self._beside) >= RUN_AHEAD_OPERATIONS
        )

    def is_full_of_bytes(self) -> bool:
        """Return whether the bytes in flight are at their limit."""
        return self._nbytes > RUN_AHEAD_NBYTES

    @property
    def is_behind(self) -> bool:
        """Whether enqueued work has yet to run, judged by the last event."""
        return bool(self._events) and not self._events[-1][0].done

    async def room(self, device: int = 0) -> None:
        """Wait until the host is within its limits again. Raises the error of work that failed."""
        self.forget_done()
        while self.is_full(device):
            if len(self._beside) >= RUN_AHEAD_OPERATIONS:
                head, middle = self._beside[0], self._beside[len(self._beside) // 2]
            else:
                head, middle = self._events[0][0], self._events[len(self._events) // 2][0]
            # Streams overtake each other: if the middle is done and the head is not, waiting for the middle would spin.
            await self.settled(head if middle.done else middle)
            self.forget_done()

    async def drain(self) -> None:
        """Wait until all enqueued work has run, then raise the first error among it."""
        failed: BaseException | None = None
        while self._events:
            event = self._events[0][0]
            await self.settled(event)
            failed = failed or event.error
            if self._events and self._events[0][0] is event:  # unless another wait has dropped it
                self._drop()
        for others in (self._beside, self._away):
            while others:
                event = others[0]
                await self.settled(event)
                failed = failed or event.error
                if others and others[0] is event:
                    others.popleft()
        if failed is not None:
            raise failed

    async def settle(self) -> None:
        """Wait until all enqueued work has run, whether it failed or not; its events tell. After a stall, return at once."""
        while (self._events or self._beside or self._away) and self.stalled is None:
            try:
                await self.drain()
            except Exception:  # drain empties all queues before it raises
                continue

    async def landed(self, event: StreamEvent) -> None:
        """Wait until `event` is done; raise the error of its work."""
        await self.settled(event)
        if event.error is not None:
            raise event.error

    async def settled(self, event: StreamEvent) -> None:
        """Wait until `event` is done, whether it failed or not. StalledError when nothing has moved for `patience_s`."""
        if self.stalled is not None:
            raise self.stalled
        if not event.done and not await self._patiently(event.resolves, lambda: event.done):
            self.hangs = True
            self.stalled = self.stall(describe(self._streams(), self.patience_s or 0.0))
            raise self.stalled

    async def told(self, future: asyncio.Future[None], otherwise: Callable[[], str]) -> None:
        """Wait for a future that another job resolves. StalledError when nothing moves meanwhile.

        A wait longer than LONG_S is reported as a Waiting event, and again when it ends.
        Only this wait is given up: it is no fault of the engine if another job keeps a thing, or never writes an input.
        otherwise: returns the sentence about this wait, for the error and the events.
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
        """Return the error for a wait that is given up, and report it as a Fault event."""
        self.tell(Fault, kind=STALL, text=text)
        return StalledError(text)

    async def _patiently(self, wakes: Callable[[asyncio.Future[None]], object], is_done: Callable[[], bool]) -> bool:
        """Wait until `is_done`; return False if nothing at all has moved for the whole patience.

        wakes: makes sure that the future it is given resolves once `is_done`.
        The timer is set by hand: asyncio.timeout takes as long as the rest of a wait, and a replayed step has a few
        waits.
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
        """Drop finished work from the front of the queues; raise the error of work that failed."""
        while self._events and self._events[0][0].done:
            event = self._drop()
            if event.error is not None:
                raise event.error
        while self._beside and self._beside[0].done:
            event = self._beside.popleft()
            if event.error is not None:
                raise event.error

    def _drop(self) -> StreamEvent:
        """Drop the first piece; return its event."""
        event, nbytes, device = self._events.popleft()
        if nbytes:
            self._nbytes -= nbytes
        else:
            self._operations[device] -= 1
        return event
