"""What streams and jobs tell a trace: work that ran, stalls and why, programs and steps that began; and the queue for it.

Nothing here waits and nothing is written: that is a thread's of asynctile/measure/trace.py. The queue is bounded. Where the
writer cannot keep up, what comes is not kept but counted, and the trace says so at that place. The way not taken: to hold back
the streams until there is room. A slow disk would then make stalls of its own, in the very thing that is looked at, and one
that does not answer would stop the training.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from asynctile.program.program import Program

#: Messages that wait to be written, at most: some 20 MiB.
MOST = 1 << 16


class Ran(NamedTuple):
    """A piece of work: by whom, from when to when. verb: the function that did it, to the tile or operation `what`.

    ready: when it could have begun, 0.0 where nobody knows. behind: the work that it waited for last, as (stream, what), None
    for none. Times by time.perf_counter.
    """

    stream: str
    thread: str
    verb: str
    what: object
    ready: float
    began: float
    ended: float
    behind: tuple[str, object] | None


class Stalled(NamedTuple):
    """`stream` had nothing to run from `began` to `ended` while `operation`, enqueued at `since`, waited for a copy.

    idle_s: seconds, summed over its threads. copy: which it waited for, as it ran; where that was not over yet, what it was
    so far: `ended` is 0.0 then, and `began` 0.0 if it had not begun.
    """

    stream: str
    began: float
    ended: float
    idle_s: float
    operation: object
    since: float
    copy: Ran


class Begun(NamedTuple):
    """A run of `program` begins on a share."""

    share: str
    program: Program


class Stepped(NamedTuple):
    """Something with a name is over on a share, a step for instance. args: numbers and words about it."""

    share: str
    name: str
    began: float
    ended: float
    args: Mapping[str, float | str]


class Flush(NamedTuple):
    """Whoever set this in the queue wants to know when all before it is written."""

    written: threading.Event


Message = Ran | Stalled | Begun | Stepped | Flush


class Recorder:
    """Messages of one trace, in the order in which they were told, from any thread. most: that may wait.

    lost: messages that came while the queue was full. wake: set when it begins to fill.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.lost = 0
        self.wake = threading.Event()
        self._queue: deque[Message] = deque()
        self._soon = max(1, most // 8)
        self._lock = threading.Lock()

    def put(self, message: Message) -> None:
        """Keep it until it is written, or count it as lost."""
        queue = self._queue
        if len(queue) >= self.most and not isinstance(message, Flush):
            with self._lock:
                self.lost += 1
            return
        queue.append(message)
        if len(queue) == self._soon:
            self.wake.set()

    def take(self, most: int) -> list[Message]:
        """The oldest, at most so many; for one thread."""
        queue = self._queue
        return [queue.popleft() for _ in range(min(most, len(queue)))]

    def step(self, share: str, name: str, seconds: float, args: Mapping[str, float | str]) -> None:
        """Something that took so long is over now."""
        now = time.perf_counter()
        self.put(Stepped(share, name, now - seconds, now, args))
