"""Streams and events on the CPU: a thread runs a stream's work in order, an event is a place in it.

graph.py has the behavior of a stream during capture, driver.py offers the calls.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, Protocol

from tests.cuda.graph import Capture, CudaError, Mark, SoftGraph


class Failing(Protocol):
    """An object that keeps the first failure."""

    error: BaseException | None


class Failed(Exception):
    """Work has failed, and its GPU has the error."""


class SoftEvent:
    """A record of an event, which has happened or not. capture, mark: the place where it was captured instead."""

    def __init__(self, capture: Capture | None = None, mark: Mark | None = None) -> None:
        self.capture = capture
        self.mark = mark
        self.happened = threading.Event()
        self.at = 0.0

    def happen(self) -> None:
        self.at = time.perf_counter()
        self.happened.set()

    def check(self) -> None:
        """Raise CudaError for an event that was captured: it never happens."""
        if self.capture is not None:
            said = "operation not permitted on an event last recorded in a capturing stream"
            self.capture.refuse("cudaErrorCapturedEvent", said)


class SoftStream:
    """A thread that runs work in order. seed: pause a little at random between pieces of work; None never pauses.

    capture: the capture in which it takes part now.
    """

    def __init__(self, driver: Failing, seed: int | None) -> None:
        self.capture: Capture | None = None
        self._branch = 0
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._driver = driver
        self._random = None if seed is None else random.Random(seed)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], object]) -> None:
        if self._captured() is None:
            self._work.put(work)
        else:
            self.capture.add(self._branch, lambda: self._run_one(work))

    def keep(self, memory: object) -> None:
        """Keep memory alive until all earlier work is over."""
        self._work.put(lambda kept=memory: None)

    def put_graph(self, graph: SoftGraph) -> None:
        self.put(lambda: graph.run(self._random))

    def record(self) -> SoftEvent:
        capture = self._captured()
        if capture is not None:
            return SoftEvent(capture, capture.mark(self._branch))
        event = SoftEvent()
        self._work.put(event.happen)
        return event

    def wait(self, event: SoftEvent) -> None:
        """Make later work wait for an event; a captured event takes this stream into its capture."""
        capture = self._captured()
        if event.capture is None:
            if capture is not None:
                capture.refuse("cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream")
            self._work.put(event.happened.wait)
        elif capture is event.capture:
            capture.wait(self._branch, event.mark)
        elif capture is not None:
            capture.refuse("cudaErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences")
        else:
            if event.capture.over:
                event.check()
            self.capture, self._branch = event.capture, event.capture.enter(event.mark)

    def begin_capture(self) -> None:
        if self._captured() is not None:
            self._illegal()
        self.capture = Capture()
        self._branch = self.capture.enter()

    def end_capture(self) -> SoftGraph:
        capture = self._captured()
        if capture is None:
            self._illegal()
        if self._branch != 0:
            capture.refuse("cudaErrorStreamCaptureUnmatched", "the capture was not initiated in this stream")
        return capture.end()

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _captured(self) -> Capture | None:
        """Return the capture in which it takes part, or None once that is over."""
        if self.capture is not None and self.capture.over:
            self.capture = None
        return self.capture

    def _illegal(self) -> NoReturn:
        raise CudaError("cudaErrorIllegalState", "the operation cannot be performed in the present state")

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            if self._random is not None and self._random.random() < 0.2:
                time.sleep(self._random.random() * 2e-3)
            with suppress(Failed):
                self._run_one(work)

    def _run_one(self, work: Callable[[], object]) -> None:
        """Run a piece of work, unless the GPU is gone. Raises Failed if it fails; the GPU then has the error."""
        if self._driver.is_dead:
            return
        try:
            work()
        except Failed:  # in a graph, on another GPU
            raise
        except BaseException as error:
            self._driver.error = self._driver.error or error
            raise Failed from error
