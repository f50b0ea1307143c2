"""Letting things come to rest instead of sleeping: the loops of an engine, and its streams.

What waits for a clock, a disk or another process is not brought to rest here.
"""

import asyncio
import threading

from asynctile.share import runtime_of

#: More than any chain of coroutines that wait for each other, and for nothing else.
TURNS = 20


async def turns():
    """Turns for this loop alone."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def settle(engine):
    """Turns for this loop and for the engine's: what waits for no thread has come to where it waits."""
    for _ in range(TURNS):
        await runtime_of(engine).call(asyncio.sleep(0))


def let_through(stream):
    """Block until a stream of one thread has run all that was ready: it takes what was enqueued first, first."""
    ran = threading.Event()
    stream.enqueue((), ran.set, ())
    assert ran.wait(20), f"stream {stream.name} is held up"


async def until(condition):
    """Turns of this loop until `condition()`; TimeoutError after 20 s."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # it comes true in another thread
            await asyncio.sleep(0)
