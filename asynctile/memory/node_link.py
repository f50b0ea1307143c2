"""The link between RAM and other nodes: an exchange carries the bytes, and a stream of its own has the events.

A node may wait for a tile as long as the others work. So beats carry how much work is done, and work of another node counts as
movement for this one's watchdog. If no node moves, all watchdogs see it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from asynctile.nodes.boxes import Told, Track
from asynctile.nodes.tcp_exchange import TcpExchange
from asynctile.storage.tile import Tile
from asynctile.streams.event import Runner, StreamEvent, StreamEvents
from asynctile.streams.stream import Stream


class NodeLink:
    """Transfers of tiles by `exchange`. stream: runs what begins a transfer, which takes microseconds.

    runners: returns every runner of this node. computes: returns whether Python computes in a thread now, such as a schedule.
    """

    def __init__(
        self, exchange: TcpExchange, stream: Stream, runners: Callable[[], Sequence[Runner]], computes: Callable[[], bool]
    ) -> None:
        self.exchange = exchange
        self._stream = stream
        self._runners = runners
        self._computes = computes
        #: how often Python computed when this node was asked for its progress
        self._computed = 0
        exchange.progress = self._progress
        exchange.moved = stream.tick

    def _progress(self) -> int:
        """Return a number that grows while this node works."""
        self._computed += self._computes()
        others = (one.finished for one in self._runners() if one is not self._stream)  # this one counts other nodes
        return self._computed + sum(others)

    def carry(
        self, tile: Tile, node: int, index: int, array: np.ndarray, sends: bool,
        told: Callable[[BaseException | None], None] = lambda error: None, after: StreamEvents = (),
    ) -> StreamEvent:  # fmt: skip
        """Enqueue a transfer that waits only for `after`; return its event, which is done once the transfer is over.

        index: of the transfer in its run, among those of temporary or of persistent tiles. array: the tile's memory in RAM,
        (nbytes,) uint8. sends: to `node`, otherwise from there. told: called by a thread of the exchange, with its error or
        None.
        """
        event = self._stream.promise(tile)

        def over(error: BaseException | None) -> None:
            told(error)
            self._stream.keep(event, error)

        move = self.exchange.send if sends else self.exchange.receive
        self._stream.enqueue((), _begin, (move, node, index, array.data, over, tile), after=after, what=tile)
        return event


def _begin(
    move: Callable[[int, int, memoryview, Told, object, Track], None], node: int, index: int, view: memoryview,
    over: Callable[[BaseException | None], None], tile: Tile,
) -> None:  # fmt: skip
    try:
        move(node, index, view, over, tile.name, Track(tile.persistent))
    except BaseException as error:  # else nobody would end the transfer
        over(error)
