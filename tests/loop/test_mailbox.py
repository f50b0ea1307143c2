"""A mailbox from one loop to a reader on another: in order, without waiting, whatever happens to the reader."""

from __future__ import annotations

import asyncio
import threading

import pytest

from asynctile.loop.mailbox import Mailbox
from tests.settle import HANG_S, turns


async def taken(box: Mailbox[int]) -> list[int]:
    found = []
    while True:
        try:
            found.append(await box.take())
        except EOFError:
            return found


async def test_items_are_taken_in_order_and_then_the_mailbox_ends() -> None:
    box = Mailbox[int]()
    for item in range(3):
        box.put(item)
    box.close(EOFError())
    assert await taken(box) == [0, 1, 2] and await taken(box) == []


async def test_a_reader_wakes_for_an_item_from_another_thread() -> None:
    box = Mailbox[int]()
    reading = asyncio.create_task(taken(box))
    for item in range(200):
        if item % 3 == 0:
            await turns()
        await asyncio.to_thread(box.put, item)
    await asyncio.to_thread(box.close, EOFError())
    assert await reading == list(range(200))


async def test_an_error_comes_after_earlier_items_and_only_the_first_counts() -> None:
    box = Mailbox[int]()
    box.put(1)
    box.close(ValueError("first"))
    box.close(ValueError("second"))
    assert await box.take() == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="first"):
            await box.take()


async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    box = Mailbox[int]()
    reading = asyncio.create_task(box.take())
    await turns()
    box.put(1)  # the reader is told, and cancelled before it can look
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await box.take() == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await box.take()
    box.put(2)
    assert await box.take() == 2


def test_a_reader_whose_loop_is_closed_delays_nobody() -> None:
    box, loop = Mailbox[int](), asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the task that is destroyed while it waits
    reading = loop.create_task(box.take())
    loop.run_until_complete(turns())
    loop.close()
    writer = threading.Thread(target=box.put, args=(1,))
    writer.start()
    writer.join(HANG_S)
    assert not writer.is_alive()
    assert asyncio.run(box.take()) == 1
    reading.get_coro().close()  # type: ignore[union-attr]
