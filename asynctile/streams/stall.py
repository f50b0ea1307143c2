"""The words for a stall: which work runs for too long, which work waits for it and for which tiles, which share has no turn.

Reads the state of the streams and changes nothing. asynctile/streams/run_ahead.py decides when to ask.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from asynctile.program.operation import Operation
from asynctile.storage.tile import Tile
from asynctile.streams.event import PendingWork, Runner, StreamEvent

F = TypeVar("F", bound=Callable[..., Any])

#: Logged for a thread that `close` waits for no longer; takes the thread's name.
LEFT_BEHIND = "thread %s hangs in its work and is left behind; it ends when that work does"
#: Number of operations and copies that the sentence names; the rest are counted.
NAMED = 2


def describe(streams: Sequence[Runner], patience_s: float) -> str:
    """Return one sentence: which work runs and since when, and which work waits for it."""
    now = time.perf_counter()
    holders, waiters = [], []
    for stream in streams:
        for thread, (task, since) in list(stream.running.items()):
            holders.append(f"{_name(task.event)} has run on {thread} for {now - since:.1f} s")
        waiters += [_waiter(piece) for piece in sorted(stream.waiting, key=lambda piece: piece.order)]
    held = "; ".join(holders[:NAMED]) or "nothing runs"
    return (
        f"nothing has moved for {patience_s:g} s: {held}{_more(holders)}; {'; '.join(waiters[:NAMED]) or 'nothing waits'}"
        f"{_more(waiters)}; close the engine, check the disk or the device that does not answer, and resume from the last "
        "checkpoint"
    )


def who() -> str:
    """Return the caller's name for messages: the coroutine that its task runs, without the underscores of private names."""
    task = asyncio.current_task()
    name: str = getattr(task.get_coro(), "__qualname__", "somebody") if task is not None else "somebody"
    return name.partition(".<locals>")[0].replace("._", ".")


def called(name: str) -> Callable[[F], F]:
    """Give a coroutine function the name that its users know it by, for `who`."""

    def rename(function: F) -> F:
        function.__qualname__ = name
        return function

    return rename


def _waiter(piece: PendingWork) -> str:
    before = [event for event in (*piece.waits, *piece.after) if not event.done]
    return f"{_name(piece.event)} {f'waits for {_names(before)}' if before else 'may not begin: its share has no turn'}"


def _names(events: Iterable[StreamEvent]) -> str:
    names = [_name(event) for event in events]
    return " and ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _name(event: StreamEvent) -> str:
    what = event.what
    if isinstance(what, Operation):
        return f"{what.kernel}({', '.join(tile.name for tile in what.operands)})"
    if isinstance(what, Tile):
        return f"the copy of tile {what.name}"
    return str(what) if what is not None else "a copy"


def _more(parts: Sequence[str]) -> str:
    return f" and {len(parts) - NAMED} more" if len(parts) > NAMED else ""
