"""The order in which callbacks hear of a run, their thread, and the consequence of an exception in one of them."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asynctile.callbacks import Callback, Callbacks, Run
from asynctile.errors import AsynctileError
from tests.settle import HANG_S

REPORT: Any = SimpleNamespace(step=1)
RUN = Run(folder=Path("runs/x"), options={"lr": 1e-3}, config={"n_layer": 2}, parameters=10, steps=3, first_step=1)


class Listening(Callback):
    """A callback that records what it is told, and on which thread."""

    def __init__(self, name: str, told: list[Any]) -> None:
        self.name, self.told, self.threads = name, told, set[threading.Thread]()

    def hear(self, what: str) -> None:
        self.told.append((self.name, what))
        self.threads.add(threading.current_thread())

    def begin(self, run: Run) -> None:
        self.hear(f"begin in {run.folder}")

    def step(self, report: Any) -> None:
        self.hear(f"step {report.step}")

    def validation(self, step: int, evaluation: Any, is_best: bool) -> None:
        self.hear(f"validation {step} {evaluation} {is_best}")

    def saved(self, step: int, path: Path) -> None:
        self.hear(f"saved {step} {path}")

    def end(self, status: str) -> None:
        self.hear(f"end {status}")


class Failing(Callback):
    def begin(self, run: Run) -> None:
        json.loads("{")

    def end(self, status: str) -> None:
        raise OSError("no room")


async def tell_all(callbacks: Callbacks) -> None:
    await callbacks.begin(RUN)
    await callbacks.step(REPORT)
    await callbacks.validation(1, "fine", True)
    await callbacks.saved(1, Path("step-1"))
    await callbacks.end("finished")


async def test_callbacks_hear_everything_in_turn_on_one_thread_beside_the_loop() -> None:
    told: list[Any] = []
    first, second = Listening("a", told), Listening("b", told)
    await tell_all(Callbacks([first, second]))
    whats = ["begin in runs/x", "step 1", "validation 1 fine True", "saved 1 step-1", "end finished"]
    assert told == [(name, what) for what in whats for name in "ab"]
    (thread,) = first.threads | second.threads
    assert thread is not threading.current_thread()


async def test_a_callback_that_overrides_nothing_may_be_told_everything() -> None:
    await tell_all(Callbacks([Callback()]))


async def test_without_callbacks_there_is_no_thread_and_nothing_is_awaited() -> None:
    threads = threading.active_count()
    for coroutine in (callbacks := Callbacks([])).begin(RUN), callbacks.step(REPORT), callbacks.end("finished"):
        with pytest.raises(StopIteration):
            coroutine.send(None)
    assert threading.active_count() == threads


async def test_a_failing_callback_is_named_with_its_line_and_only_callbacks_that_began_hear_the_end() -> None:
    told: list[Any] = []
    first, last = Listening("first", told), Listening("last", told)
    callbacks = Callbacks([first, Failing(), last])
    with pytest.raises(AsynctileError, match=r":Failing failed as the run began, line \d+ of .*test_callbacks.py: JSONDecode"):
        await callbacks.begin(RUN)
    with pytest.raises(AsynctileError, match=r":Failing failed as the run ended, .*OSError\('no room'\); mend it, or go on"):
        await callbacks.end("failed")
    await callbacks.end("failed")
    assert told == [("first", "begin in runs/x"), ("first", "end failed")]


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt])
async def test_an_error_that_no_future_carries_out_of_a_thread_is_a_failure_like_others(error: type[BaseException]) -> None:
    class Odd(Callback):
        def step(self, report: Any) -> None:
            raise error

    callbacks = Callbacks([Odd()])
    await callbacks.begin(RUN)
    with pytest.raises(AsynctileError, match=rf"Odd failed at step 1, line \d+ of .*: {error.__name__}\(\)"):
        async with asyncio.timeout(HANG_S):
            await callbacks.step(REPORT)
    await callbacks.end("failed")


async def test_a_callback_that_fails_at_the_end_does_not_keep_the_end_from_the_others() -> None:
    told: list[Any] = []

    class Late(Failing):
        def begin(self, run: Run) -> None:
            pass

    callbacks = Callbacks([Late(), Listening("last", told)])
    await callbacks.begin(RUN)
    with pytest.raises(AsynctileError, match="Late failed as the run ended"):
        await callbacks.end("finished")
    assert told[-1] == ("last", "end finished")


async def test_a_running_callback_finishes_before_a_cancellation_is_raised() -> None:
    begun, may_end, told = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    class Slow(Callback):
        def step(self, report: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            may_end.wait(HANG_S)
            told.append(report)

    callbacks = Callbacks([Slow()])
    await callbacks.begin(RUN)
    step = asyncio.create_task(callbacks.step(REPORT))
    await begun.wait()
    step.cancel()
    await asyncio.sleep(0)
    assert not step.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert told == [REPORT]
    await callbacks.end("stopped")
