"""The words of a stall: the work held back by a shut gate, and the work that waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from asynctile.ops import copy, fill
from asynctile.storage.tile import Tile
from asynctile.streams.gate import CLOSED, GATE, OPEN, Gate
from asynctile.streams.stall import describe
from asynctile.streams.stream import Stream
from tests.settle import until

A, B = Tile("a", (4,)), Tile("b", (4,))


@pytest.fixture
def stream() -> Iterator[Stream]:
    made = Stream("compute", threading.Lock())
    made.start()
    yield made
    made.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """The gate of everything that a test enqueues from here on."""
    made, before = Gate(), GATE.get()
    GATE.set(made)
    yield made
    GATE.set(before)


async def test_held_back_work_is_named_with_its_waiters(stream: Stream, gate: Gate) -> None:
    gate.set(CLOSED)
    load = stream.enqueue((), int, (), is_copy=True, what=A)
    event = stream.enqueue((load,), int, (), what=copy(A, B))
    await until(lambda: len(stream.waiting) == 2)
    held, waits = "the copy of tile a may not begin: its share has no turn", "copy(a, b) waits for the copy of tile a"
    assert f"nothing runs; {held}; {waits}; " in describe([stream], 5)
    gate.set(OPEN)
    stream.gates_changed()
    await event.landed()
    assert "nothing waits" in describe([stream], 5)


async def test_work_that_closing_releases_is_no_longer_named(stream: Stream, gate: Gate) -> None:
    gate.set(CLOSED)
    stream.enqueue((), int, (), what=fill(A, 0.0))
    await until(lambda: stream.waiting)
    stream.close()
    assert "nothing waits" in describe([stream], 5)
