"""A call that is disturbed: cancelled, once or several times, run into a timeout, or left alone by a loop that ends.

The moment is a number of awaits of the engine's own job, or of turns of the caller's loop, not a time: so it falls into every
wait, and a seed repeats it as far as threads allow. Covers the drawing and doing of it. What is called is calls.py.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any

from asynctile.loop.thread import new_loop

__all__ = ["Disturbance", "Counted", "disturbed", "draw_disturbance"]

_HOWS = ("cancel", "cancel", "cancel three times", "timeout", "timeout", "loop ends")
#: Shares of moments: before the call has begun, at a turn of the caller's loop, else at an await of the engine's job.
_AT_ONCE, _AT_TURN = 0.1, 0.2
_TURNS = 12

Call = Callable[[], Coroutine[Any, Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """at: the await of the engine's job, the first being 1; 0: none. turns: of the caller's loop, if not at an await.

    elsewhere: called from a loop of its own in another thread. uvloop: which kind that is.
    """

    how: str
    at: int = 0
    turns: int = 0
    elsewhere: bool = False
    uvloop: bool = False


def draw_disturbance(chance: random.Random, awaits: int) -> Disturbance:
    """awaits: about how many of them the call has undisturbed."""
    how, where = chance.choice(_HOWS), chance.random()
    elsewhere = how == "loop ends" or chance.random() < 0.3
    at = 0 if where < _AT_ONCE + _AT_TURN else chance.randint(1, max(awaits, 1))
    turns = 0 if where < _AT_ONCE else chance.randint(1, _TURNS)
    return Disturbance(how=how, at=at, turns=turns, elsewhere=elsewhere, uvloop=chance.random() < 0.5)


class Counted(Coroutine[Any, Any, Any]):
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
    """Counts the awaits of jobs, on the engine's loop, and says once when there are as many as `at`."""

    def __init__(self, at: int) -> None:
        self.awaits = 0
        self.say: Callable[[], object] = bool
        self._at = at

    def count(self) -> None:
        self.awaits += 1
        if self.awaits == self._at:
            self.say()


async def disturbed(call: Call, how: Disturbance, reached: Reached) -> bool:
    """Make the call and disturb it; whether it came to its end all the same. Errors of its own are raised."""
    if not how.elsewhere:
        return await _here(call, how, reached)
    return await asyncio.to_thread(_elsewhere, call, how, reached)


async def _here(call: Call, how: Disturbance, reached: Reached) -> bool:
    loop, scopes = asyncio.get_running_loop(), []

    async def within() -> None:
        async with asyncio.timeout(None) as scope:
            scopes.append(scope)
            await call()

    task = loop.create_task(within())

    def disturb() -> None:
        if how.how == "timeout" and scopes:
            if not task.done():
                scopes[0].reschedule(loop.time())
            return
        task.cancel()
        if how.how == "cancel three times":
            loop.call_soon(lambda: (task.cancel(), loop.call_soon(task.cancel)))

    reached.say = lambda: loop.call_soon_threadsafe(disturb)
    if not how.at:
        for _ in range(how.turns):
            await asyncio.sleep(0)
        disturb()
    try:
        await task
    except (asyncio.CancelledError, TimeoutError):
        return False
    finally:
        reached.say = bool
        await asyncio.sleep(0)  # what was told at the very end
        await asyncio.sleep(0)
    return True


def _elsewhere(call: Call, how: Disturbance, reached: Reached) -> bool:
    """In a thread: on a loop of its own."""
    make_loop = new_loop if how.uvloop else asyncio.new_event_loop
    if how.how != "loop ends":
        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(_here(call, how, reached))
    loop = make_loop()
    loop.set_exception_handler(lambda *_: None)  # that a task was thrown away while it waited is what we are here for
    task = loop.create_task(call())
    task.add_done_callback(lambda _: loop.stop())
    reached.say = lambda: loop.call_soon_threadsafe(loop.stop)
    if not how.at:
        _stop_after(loop, how.turns)
    loop.run_forever()
    reached.say = bool
    loop.close()
    if task.done():
        task.result()
        return True
    del task
    gc.collect()
    return False


def _stop_after(loop: asyncio.AbstractEventLoop, turns: int) -> None:
    loop.call_soon(loop.stop if not turns else lambda: _stop_after(loop, turns - 1))
