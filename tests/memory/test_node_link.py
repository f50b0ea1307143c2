"""The link to other nodes: when a transfer begins, and how its event tells the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from asynctile.errors import NodeError
from asynctile.memory.node_link import NodeLink
from asynctile.nodes.boxes import Track
from asynctile.storage.tile import Tile
from asynctile.streams.stream import Stream

TILE = Tile("t", (4,), np.float32)


class Held:
    """An exchange that holds every transfer until the test ends it."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, int, memoryview, Any]] = []
        self.computes = False

    def send(self, node: int, index: int, view: memoryview, told: Any, what: object, track: Track) -> None:
        assert what == TILE.name and track is Track.TEMPORARY
        self.begun.append(("send", node, index, view, told))

    def receive(self, node: int, index: int, view: memoryview, told: Any, what: object, track: Track) -> None:
        assert what == TILE.name and track is Track.TEMPORARY
        if index < 0:
            raise ValueError("no such transfer")
        self.begun.append(("receive", node, index, view, told))


@pytest.fixture
def link() -> Iterator[tuple[NodeLink, Held, Stream]]:
    stream, exchange = Stream("nodes", threading.Lock()), Held()
    stream.start()
    yield NodeLink(exchange, stream, lambda: [stream], lambda: exchange.computes), exchange, stream  # type: ignore[arg-type]
    stream.close()


async def test_a_transfer_begins_after_earlier_work_and_is_done_when_the_exchange_says_so(link: Any) -> None:
    nodes, exchange, stream = link
    gate, told, array = threading.Event(), [], np.zeros(16, np.uint8)
    earlier = stream.enqueue((), gate.wait, ())
    event = nodes.carry(TILE, 3, 7, array, True, told.append, (earlier,))
    assert not exchange.begun
    gate.set()
    await stream.enqueue((), int, ()).landed()
    ((way, node, index, view, over),) = exchange.begun
    assert (way, node, index, len(view)) == ("send", 3, 7, 16) and not event.done and not told
    over(None)
    await event.landed()
    assert told == [None] and event.what is TILE


async def test_work_of_other_nodes_counts_as_movement_and_is_not_passed_on(link: Any) -> None:
    """Else two nodes that wait for each other would keep each other's watchdogs quiet."""
    _, exchange, stream = link
    before, done = stream.finished, exchange.progress()
    exchange.moved()
    assert stream.finished == before + 1 and exchange.progress() == done


async def test_a_node_that_computes_a_schedule_moves(link: Any) -> None:
    _, exchange, _ = link
    assert exchange.progress() == exchange.progress()
    exchange.computes = True
    assert exchange.progress() < exchange.progress()


@pytest.mark.parametrize("index", [0, -1])
async def test_an_error_reaches_the_event_and_the_player(link: Any, index: int) -> None:
    """An index of -1 is refused by the exchange at once."""
    nodes, exchange, stream = link
    told: list[Any] = []
    event = nodes.carry(TILE, 1, index, np.zeros(16, np.uint8), False, told.append)
    await stream.enqueue((), int, ()).landed()
    for *_, over in exchange.begun:
        over(NodeError("node 1 was lost"))
    with pytest.raises((NodeError, ValueError), match=r"was lost|no such transfer"):
        await event.landed()
    assert len(told) == 1 and told[0] is event.error
