"""Ways to let an engine's loops and streams come to rest, instead of sleeping.

Work that waits for a clock, a disk or another process is not brought to rest here.
"""

import asyncio
import threading

from asynctile.share import runtime_of

#: More than any chain of coroutines that wait only for each other.
TURNS = 20
#: Seconds that only a hang takes, on a machine with much other work as well. Less than pytest gives a test (pyproject.toml).
HANG_S = 200.0


async def turns():
    """Give this loop alone its turns."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def settle(engine):
    """Give this loop and the engine's loop their turns: whatever waits for no thread has then come to where it waits."""
    for _ in range(TURNS):
        await runtime_of(engine).call(asyncio.sleep(0))


def let_through(stream):
    """Block until a stream of one thread has run everything that was ready; such a stream works first in, first out."""
    ran = threading.Event()
    stream.enqueue((), ran.set, ())
    assert ran.wait(HANG_S), f"stream {stream.name} is held up"


async def until(condition):
    """Give this loop turns until `condition()` is true; TimeoutError after HANG_S."""
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110  # it comes true in another thread
            await asyncio.sleep(0)
