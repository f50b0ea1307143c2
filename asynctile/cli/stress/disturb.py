"""Disturbed calls: cancelled once or three times, timed out, or abandoned by a loop that ends.

The moment is a number of awaits of the engine's own jobs or of turns of the caller's loop, so that it falls into every wait
and a seed repeats it as far as threads allow. It is a time for calls that wait only for threads. Covers drawing and doing a
disturbance, and checks that a cancellation is raised. The calls are in calls.py and lives.py.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from asynctile.cli.stress.finding import Finding
from asynctile.loop.thread import new_loop

__all__ = [
    "COUNT", "Call", "CountedCoroutine", "Disturbance", "Landed", "Reached", "disturbed", "draw_disturbance", "thrown_away",
]  # fmt: skip

_HOWS = ("cancel", "cancel", "cancel three times", "timeout", "timeout", "loop ends")
#: Shares of moments: before the call begins, at a turn of the caller's loop, at a time; else at an await of an engine's job.
_AT_ONCE, _AT_TURN, _AT_TIME = 0.1, 0.2, 0.2
_TURNS = 12

Call = Callable[[], Coroutine[Any, Any, Any]]
#: Called on the engine's loop at every await of the jobs that a call submits to it.
COUNT: ContextVar[Callable[[], None] | None] = ContextVar("asynctile_stress_count", default=None)


class Landed(StrEnum):
    """The moment of its call at which a disturbance struck."""

    BEFORE = "before it began"
    INSIDE = "inside"
    AFTER = "after its end"
    NEVER = "never"
    """The call ended first, and nobody checked any more."""


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """How a call is disturbed, and when.

    at: number of the await of the engine's jobs, from 1; 0: none. after_s: seconds, if not at an await. turns: of the caller's
    loop, if neither. elsewhere: called from a loop of its own in another thread. uvloop: whether that loop is a uvloop.
    """

    how: str
    at: int = 0
    after_s: float = 0.0
    turns: int = 0
    elsewhere: bool = False
    uvloop: bool = False


def draw_disturbance(chance: random.Random, awaits: int, usual_s: float, turns: int = _TURNS) -> Disturbance:
    """Draw a disturbance.

    awaits, usual_s: about how many awaits and seconds the undisturbed call takes. turns: the most turns of the caller's
    loop.
    """
    how, where = chance.choice(_HOWS), chance.random()
    elsewhere = how == "loop ends" or chance.random() < 0.3
    at, after_s, turn = 0, 0.0, 0
    if _AT_ONCE <= where < _AT_ONCE + _AT_TURN:
        turn = chance.randint(1, turns)
    elif where >= 1 - _AT_TIME or (where >= _AT_ONCE and not awaits):
        after_s = chance.uniform(0, usual_s)
    elif where >= _AT_ONCE:
        at = chance.randint(1, awaits)
    return Disturbance(how=how, at=at, after_s=after_s, turns=turn, elsewhere=elsewhere, uvloop=chance.random() < 0.5)


class CountedCoroutine(Coroutine[Any, Any, Any]):
    """`job`, with `count` called whenever it waits."""

    def __init__(self, job: Coroutine[Any, Any, Any], count: Callable[[], None]) -> None:
        self.__qualname__ = getattr(job, "__qualname__", "a job")
        self._job, self._count = job, count

    def send(self, value: Any) -> Any:
        awaited = self._job.send(value)
        self._count()
        return awaited

    def throw(self, *error: Any) -> Any:
        awaited = self._job.throw(*error)
        self._count()
        return awaited

    def close(self) -> None:
        self._job.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._job.__await__()


class Reached:
    """Counts the awaits of jobs, on the engine's loop, and calls `say` once when there are `at` of them."""

    def __init__(self, at: int) -> None:
        self.awaits = 0
        self.say: Callable[[], object] = bool
        self._at = at

    def count(self) -> None:
        self.awaits += 1
        if self.awaits == self._at:
            self.say()


async def disturbed(call: Call, how: Disturbance, reached: Reached) -> Landed:
    """Make the call, disturb it, and return at which moment of the call the disturbance struck.

    The call's own errors are raised; Finding if it hides a cancellation.
    """
    if not how.elsewhere:
        return await _here(call, how, reached)
    return await asyncio.to_thread(_elsewhere, call, how, reached)


async def _here(call: Call, how: Disturbance, reached: Reached) -> Landed:
    loop, scopes = asyncio.get_running_loop(), []
    met, cancelled = False, False

    async def within() -> None:
        COUNT.set(reached.count)
        async with asyncio.timeout(None) as scope:
            scopes.append(scope)
            await call()

    task = loop.create_task(within())

    def disturb() -> None:
        nonlocal met, cancelled
        met = True
        if how.how == "timeout" and scopes:
            if not task.done():
                scopes[0].reschedule(loop.time())
            return
        cancelled = task.cancel() or cancelled
        if how.how == "cancel three times":
            loop.call_soon(lambda: (task.cancel(), loop.call_soon(task.cancel)))

    reached.say = lambda: loop.call_soon_threadsafe(disturb)
    if not how.at:
        if how.after_s:
            await asyncio.sleep(how.after_s)
        for _ in range(how.turns):
            await asyncio.sleep(0)
        disturb()
    try:
        await task
    except (asyncio.CancelledError, TimeoutError):
        return Landed.INSIDE if scopes else Landed.BEFORE
    finally:
        reached.say = bool
        await asyncio.sleep(0)  # for callbacks of the very end
        await asyncio.sleep(0)
    if cancelled or scopes[0].expired():
        raise Finding("failed", f"{call} was disturbed ({how.how}) but ended as if it had not been")
    return Landed.AFTER if met else Landed.NEVER


def _elsewhere(call: Call, how: Disturbance, reached: Reached) -> Landed:
    """Disturb the call on a loop of its own, in this thread."""
    make_loop = new_loop if how.uvloop else asyncio.new_event_loop
    if how.how != "loop ends":
        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(_here(call, how, reached))
    loop, began = make_loop(), []
    loop.set_exception_handler(lambda *_: None)  # tasks are discarded while they wait on purpose

    async def within() -> None:
        began.append(True)
        COUNT.set(reached.count)
        await call()

    task = loop.create_task(within())
    task.add_done_callback(lambda _: loop.stop())
    reached.say = lambda: loop.call_soon_threadsafe(loop.stop)
    if how.after_s:
        loop.call_later(how.after_s, loop.stop)
    elif not how.at:
        _stop_after(loop, how.turns)
    loop.run_forever()
    reached.say = bool
    loop.close()
    if task.done():
        task.result()
        return Landed.NEVER
    del task
    gc.collect()
    return Landed.INSIDE if began else Landed.BEFORE


@contextmanager
def thrown_away() -> Iterator[list[str]]:
    """Collect, in the list that it yields, errors that Python can only report, as it discards coroutines.

    RuntimeErrors and RuntimeWarnings are left out: a caller's own blocks may cause them.
    """
    found: list[str] = []
    before = sys.unraisablehook

    def note(unraisable: sys.UnraisableHookArgs) -> None:
        # Expected: a task group that cannot end, a generator that cannot be closed before it was asked, and a task that its
        # loop left before the first turn and was never awaited: a RuntimeWarning where warnings are errors.
        if not isinstance(unraisable.exc_value, RuntimeError | RuntimeWarning):
            found.append(f"{unraisable.exc_value!r} in {unraisable.object!r}")

    sys.unraisablehook = note
    try:
        yield found
    finally:
        sys.unraisablehook = before


def _stop_after(loop: asyncio.AbstractEventLoop, turns: int) -> None:
    loop.call_soon(loop.stop if not turns else lambda: _stop_after(loop, turns - 1))
