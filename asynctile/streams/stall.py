"""A stall in words: what runs for too long, what waits for it, and for which tiles; what has no turn.

Reads the registers of the streams; changes nothing. When to ask is run_ahead.py's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from asynctile.program.operation import Operation
from asynctile.storage.tile import Tile
from asynctile.streams.event import PendingWork, Runner, StreamEvent

#: Logged of a thread, by name, that closing does not wait for any longer.
LEFT_BEHIND = "%s hangs in its work and is left behind; it ends when that does"
#: Operations and copies that the sentence names; the rest is counted.
NAMED = 2


def describe(streams: Sequence[Runner], patience_s: float) -> str:
    """One sentence: what runs, since when, and who waits for it."""
    now = time.perf_counter()
    holders, waiters = [], []
    for stream in streams:
        for thread, (task, since) in list(stream.running.items()):
            holders.append(f"{_name(task.event)} has run on {thread} for {now - since:.1f} s")
        waiters += [_waiter(piece) for piece in sorted(stream.waiting, key=lambda piece: piece.order)]
    held = "; ".join(holders[:NAMED]) or "nothing runs"
    return (
        f"nothing has moved for {patience_s:g} s: {held}{_more(holders)}; {'; '.join(waiters[:NAMED]) or 'nothing waits'}"
        f"{_more(waiters)}; close the engine, look at the disk or the device that does not answer, and go on from the last "
        "checkpoint"
    )


def who() -> str:
    """The caller in words: the coroutine that its task runs, without the marks of what is private."""
    task = asyncio.current_task()
    name: str = getattr(task.get_coro(), "__qualname__", "somebody") if task is not None else "somebody"
    return name.partition(".<locals>")[0].replace("._", ".")


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
