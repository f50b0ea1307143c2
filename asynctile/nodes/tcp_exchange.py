"""The exchange of tiles between nodes over TCP: `TcpExchange`. Plain sockets in threads, without the interpreter's lock.

Every pair of nodes has a control connection and several connections for tiles. Tiles are cut into pieces, sent from where they
stand and received into where they will stand. Control connections carry agreements, and a beat by which a stopped or
unreachable node is noticed.

The way not taken: asyncio's transports. They copy each piece once more, and share the loop with the entries of a step.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from asynctile.errors import NodeError
from asynctile.nodes.boxes import Told, Track
from asynctile.nodes.handshake import Hello
from asynctile.nodes.line import Line, SocketLine
from asynctile.nodes.listener import Listener
from asynctile.nodes.meeting import apart, meet
from asynctile.nodes.peer import RELAYED, Peer
from asynctile.nodes.precedence import Precedence
from asynctile.nodes.wire import Message, Said
from asynctile.threads import start

#: The term that names what carries tiles, and two networks.
NETWORK, TCP, NCCL = "network", "tcp", "nccl"
#: Connections for the tiles of each track, between each pair of nodes.
CHANNELS = 2
#: Seconds without a sign of life after which a node is lost, and beats within this time.
PATIENCE_S, BEATS = 30.0, 8
#: Seconds in which all nodes must have joined.
WAIT_S = 60.0
#: Agreements of another node that may wait for this one. A node is at most one ahead.
AHEAD = 4


class TcpExchange:
    """The exchange of node `node`, over its connections to all others; `meet` makes them. A context manager.

    controls: the control connection to each other node. lines: for tiles, likewise. listener: refuses callers that come too
    late. patience_s: for a sign of life of each node. Any thread may call any method.
    progress: returns how much work of this node is done, for its beats. moved: called when a beat of another node tells more.
    """

    def __init__(
        self, node: int, controls: Mapping[int, socket.socket], lines: Mapping[int, Sequence[Line]], listener: Listener,
        patience_s: float,
    ) -> None:  # fmt: skip
        self.node = node
        self._listener = listener
        self._patience_s = patience_s
        self.progress: Callable[[], int] = int
        self.moved: Callable[[], object] = bool
        self._failure: NodeError | None = None
        self._changed = threading.Condition()
        self._is_closed = threading.Event()
        precedence = Precedence()
        self._peers = {
            other: Peer(other, controls[other], lines[other], patience_s, precedence, self._on_lost, self._on_shared,
                        lambda: self.moved())
            for other in sorted(controls)
        }  # fmt: skip
        self._said: dict[int, deque[tuple[str, bytes]]] = {other: deque() for other in self._peers}
        self._beats = threading.Thread(target=self._beat, name="asynctile-node-beats", daemon=True)
        for peer in self._peers.values():
            peer.start()
        start(self._beats)

    @classmethod
    def meet(
        cls, node: int, nodes: int, address: tuple[str, int], secret: bytes, terms: Mapping[str, str], *,
        channels: int = CHANNELS, patience_s: float = PATIENCE_S, wait_s: float = WAIT_S, check: Callable[[], object] = bool,
    ) -> Self:  # fmt: skip
        """Meet the other nodes and return the exchange.

        node: from 0. address: host and port at which node 0 listens. terms: everything on which all nodes must agree, by name.
        channels: connections of each pair, for each way. check: called several times a second while this waits; what it raises
        ends the wait. NodeError if a node does not come within `wait_s`, or is refused. ValueError for numbers that do not
        exist.
        """
        hello = Hello(node=node, nodes=nodes, terms={**terms, NETWORK: TCP})
        connections, listener = meet(hello, address, secret, len(Track) * channels, wait_s, check)
        controls, others = apart(connections)
        lines = {
            other: [SocketLine(one, Track(number % len(Track)), patience_s) for number, one in enumerate(own)]
            for other, own in others.items()
        }  # fmt: skip
        return cls(node, controls, lines, listener, patience_s)

    @property
    def nodes(self) -> int:
        """How many nodes take part."""
        return 1 + len(self._peers)

    @property
    def failure(self) -> NodeError | None:
        """The error that ended the exchange; None while it works."""
        return self._failure

    def begin(self, sends: Mapping[int, int], receives: Mapping[int, int], track: Track = Track.TEMPORARY) -> None:
        """Begin a run with so many transfers of a track to and from each node. Both sides must count alike.

        RuntimeError while transfers of the last run are under way.
        """
        for node, peer in self._peers.items():
            peer.outboxes[track].begin(sends.get(node, 0))
            peer.inboxes[track].begin(receives.get(node, 0))

    def send(
        self, node: int, index: int, view: memoryview, told: Told, what: object = "bytes", track: Track = Track.TEMPORARY
    ) -> None:
        """Send bytes as transfer `index` of this run and track to `node`. They must stay until `told` is called.

        view: contiguous bytes. told: called in any thread, once, with None or the error. It must not raise or wait. what: the
        tile, for messages.
        """
        self._peers[node].outboxes[track].add(index, view, told, what)

    def receive(
        self, node: int, index: int, view: memoryview, told: Told, what: object = "bytes", track: Track = Track.TEMPORARY
    ) -> None:
        """Receive transfer `index` of this run and track from `node` into `view`, as `send`. Failed bytes are no good."""
        self._peers[node].inboxes[track].add(index, view, told, what)

    def share(self, topic: str, body: bytes) -> list[bytes]:
        """Tell all nodes `body` about `topic`; return what each said about it, by node. Waits for all.

        All nodes share the same topics in the same order. NodeError if one is lost, has left or shares another topic.
        """
        if self._failure is not None:
            raise self._failure
        for peer in self._peers.values():
            peer.say(Message(Said.SHARE, topic, body))
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or all(map(self._has_said, self._peers)))
            left = next((peer for node, peer in self._peers.items() if not self._said[node]), None)
            if left is not None and self._failure is not None:  # else what failed came behind the word of all
                raise self._failure
            said = {} if left is not None else {node: self._said[node].popleft() for node in self._peers}
        if left is not None:
            raise NodeError(f"{left.name} has left, and this node waits for its word on {topic}")
        for node, (other, _) in said.items():
            if other != topic:
                self.abort(f"{self._peers[node].name} is at {other}, and node {self.node} is at {topic}")
                assert self._failure is not None
                raise self._failure
        return [body if node == self.node else said[node][1] for node in range(self.nodes)]

    def abort(self, why: str) -> None:
        """End the exchange on all nodes, whose waits fail with these words."""
        self._fail(NodeError(f"node {self.node} gave up: {why}"), Message(Said.ABORT, "", why.encode()))

    def close(self) -> None:
        """Leave in order, and end all threads. Nothing should be under way; what is, fails."""
        self._is_closed.set()
        self._listener.close()
        self._fail(NodeError(f"the exchange of node {self.node} was closed"), Message(Said.BYE, "", b""))
        for peer in self._peers.values():
            peer.close()
        self._beats.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _has_said(self, node: int) -> bool:
        return bool(self._said[node]) or self._peers[node].has_left

    def _fail(self, error: NodeError, farewell: Message) -> None:
        with self._changed:
            if self._failure is not None:
                return
            self._failure = error
            self._changed.notify_all()
        for peer in self._peers.values():
            peer.fail(error, farewell)

    def _on_lost(self, peer: Peer, error: NodeError) -> None:
        if peer.has_left:
            peer.fail(error, None)
            with self._changed:
                self._changed.notify_all()
        else:
            self._fail(error, Message(Said.ABORT, RELAYED, str(error).encode()))

    def _on_shared(self, peer: Peer, topic: str, body: bytes) -> None:
        with self._changed:
            said = self._said[peer.node]
            said.append((topic, body))
            is_far_ahead = len(said) > AHEAD
            self._changed.notify_all()
        if is_far_ahead:
            self.abort(f"{peer.name} is {len(said)} agreements ahead")

    def _beat(self) -> None:
        while not self._is_closed.wait(self._patience_s / BEATS):
            done = str(self.progress()).encode()
            for peer in self._peers.values():
                if self._failure is None and not peer.has_left:
                    peer.say(Message(Said.BEAT, "", done))
                    peer.check()
