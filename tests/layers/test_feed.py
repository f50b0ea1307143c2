"""Batches from a caller's iterable, whose loop may end while a batch is on its way. test_runs.py tests runs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from asynctile.layers.feed import Feed
from tests.settle import HANG_S


def numbers(gate: threading.Event) -> Iterator[int]:
    """Yield 1 once the gate is open, then 2."""
    gate.wait(HANG_S)
    yield 1
    yield 2


async def cancelled_take(feed: Feed) -> None:
    task = asyncio.create_task(feed.take())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_item_whose_waiter_is_gone_is_the_next_item() -> None:
    gate = threading.Event()
    feed = Feed(numbers(gate))
    for _ in range(3):
        await cancelled_take(feed)
    gate.set()
    assert [await feed.take(), await feed.take()] == [1, 2]
    with pytest.raises(StopAsyncIteration):
        await feed.take()
    feed.close()


def test_an_item_that_arrives_after_its_loop_ended_goes_to_the_next_loop(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    feed = Feed(numbers(gate))
    with caplog.at_level(logging.DEBUG):
        asyncio.run(cancelled_take(feed))  # and its loop is closed
        gate.set()
        assert asyncio.run(feed.take()) == 1
        assert asyncio.run(feed.take()) == 2
    feed.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
