"""Messages from streams and jobs to a trace, and the bounded queue in which they wait to be written.

A message is a piece of work that ran, a stall with its cause, a program that begins, or a step that ended. Nothing here
waits or writes: the writing thread is in asynctile/measure/trace.py.

When the writer cannot keep up, new messages are dropped and counted, and the trace reports the gap at that place. The
way not taken: hold back the streams until there is room. A slow disk would then cause stalls in the very thread under
observation, and a disk that does not answer would stop the training.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from asynctile.program.program import Program

#: Most messages that may wait to be written: about 20 MiB.
MOST = 1 << 16


class Ran(NamedTuple):
    """A piece of work that ran: on which stream and thread, from when to when. Times are time.perf_counter.

    verb: name of the function that did the work.
    what: tile or operation that it worked on.
    ready: when the work could have begun; 0.0 if unknown.
    behind: work that it waited for last, as (stream, what); None if it waited for none.
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
    """A stall: `stream` had nothing to run from `began` to `ended` while `operation` waited for a copy.

    since: when the operation was enqueued.
    idle_s: idle seconds, summed over the stream's threads.
    copy: the copy that the operation waited for. If it has not ended, its `ended` is 0.0; if it has not begun, `began`
        is 0.0 too.
    """

    stream: str
    began: float
    ended: float
    idle_s: float
    operation: object
    since: float
    copy: Ran


class Begun(NamedTuple):
    """A run of `program` that begins on a share."""

    share: str
    program: Program


class Stepped(NamedTuple):
    """A named span that has ended on a share, such as a step. args: numbers and words about it."""

    share: str
    name: str
    began: float
    ended: float
    args: Mapping[str, float | str]


class Flush(NamedTuple):
    """A request to set `written` once every earlier message in the queue has been written."""

    written: threading.Event


Message = Ran | Stalled | Begun | Stepped | Flush


class Recorder:
    """Messages of one trace, from any thread, in the order in which they were put.

    most: limit on waiting messages.
    lost: number of messages dropped because the queue was full.
    wake: set when the queue is an eighth full, to wake the writer.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.lost = 0
        self.wake = threading.Event()
        self._queue: deque[Message] = deque()
        self._soon = max(1, most // 8)
        self._lock = threading.Lock()

    def put(self, message: Message) -> None:
        """Queue the message, or count it as lost if the queue is full. A Flush is never lost."""
        queue = self._queue
        if len(queue) >= self.most and not isinstance(message, Flush):
            with self._lock:
                self.lost += 1
            return
        queue.append(message)
        if len(queue) == self._soon:
            self.wake.set()

    def take(self, most: int) -> list[Message]:
        """Return the oldest messages, at most `most`. Only one thread may take."""
        queue = self._queue
        return [queue.popleft() for _ in range(min(most, len(queue)))]

    def step(self, share: str, name: str, seconds: float, args: Mapping[str, float | str]) -> None:
        """Put a span that took `seconds` and ends now."""
        now = time.perf_counter()
        self.put(Stepped(share, name, now - seconds, now, args))
