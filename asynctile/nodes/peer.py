"""One other node, as this one talks to it: a control connection for messages, and connections for the pieces of tiles.

Each connection has a thread that reads; those for pieces have another one that writes. Errors go to `lost`, which is called in
the thread that met them.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from asynctile.errors import NodeError
from asynctile.nodes.boxes import Inbox, Outbox
from asynctile.nodes.wire import Message, Said, at, read_into, read_message, read_piece, reason, send_message, send_piece
from asynctile.threads import start

#: The topic of an abort that passes on what another node has said or done.
RELAYED = "relayed"
#: Seconds that a lost connection of tiles waits for a message that says why, and that a farewell may take.
FAREWELL_S = 2.0


class Peer:
    """Node `node`, over its connections: first the control connection. patience_s: for a sign of life.

    lost: called with the error when the node is lost, gives up or leaves. shared: called with (topic, body) of its messages.
    moved: called when a beat tells that more of its work is done. has_left: the node has left in order.
    """

    def __init__(
        self, node: int, connections: Sequence[socket.socket], patience_s: float,
        lost: Callable[[Peer, NodeError], None], shared: Callable[[Peer, str, bytes], None], moved: Callable[[], object],
    ) -> None:  # fmt: skip
        self.node = node
        self.outbox, self.inbox = Outbox(), Inbox()
        self._control, *self._channels = connections
        self._patience_s = patience_s
        self._lost, self._shared, self._moved = lost, shared, moved
        self.name = f"node {node} ({at(self._control.getpeername())})"
        self.has_left = False
        self._writing = threading.Lock()
        #: set once it is known why the node is gone
        self._has_ended = threading.Event()
        for connection in connections:
            connection.settimeout(patience_s if connection is self._control else None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._threads = [self._thread("listen", self._listen)]
        for channel in self._channels:
            self._threads += self._thread("send", self._send, channel), self._thread("receive", self._receive, channel)

    def start(self) -> None:
        """Start the threads. DeviceError if the system refuses one."""
        start(*self._threads)

    def say(self, message: Message) -> None:
        """Send a message. A node that cannot be reached is lost."""
        try:
            with self._writing:
                send_message(self._control, message)
        except OSError as error:
            self._end(f"{self.name} was lost: {reason(error)}")

    def fail(self, error: NodeError, farewell: Message | None) -> None:
        """Fail all transfers, and say farewell. The other node closes the connections in turn."""
        self._has_ended.set()
        self.outbox.fail(error)
        self.inbox.fail(error)
        if farewell is not None:
            with suppress(OSError), self._writing:
                send_message(self._control, farewell)
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)  # what was sent still arrives
        for channel in self._channels:
            with suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the threads and close the connections, after `fail`."""
        listener, *others = self._threads
        _join(listener, FAREWELL_S)
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        for thread in (listener, *others):
            _join(thread, None)
        for connection in (self._control, *self._channels):
            connection.close()

    def _thread(self, work: str, target: Callable[..., None], *args: socket.socket) -> threading.Thread:
        return threading.Thread(target=target, args=args, name=f"asynctile-node-{self.node}-{work}", daemon=True)

    def _listen(self) -> None:
        """Read messages until the node is gone."""
        done = b""
        try:
            while (message := read_message(self._control)).kind in (Said.BEAT, Said.SHARE):
                if message.kind is Said.SHARE:
                    self._shared(self, message.topic, message.body)
                elif message.body != done:
                    done = message.body
                    self._moved()
        except TimeoutError:
            self._end(f"{self.name} has been silent for {self._patience_s:g} s: it was stopped or cannot be reached")
        except OSError as error:
            self._end(f"{self.name} was lost: {reason(error)}")
        else:
            self.has_left, said = message.kind is Said.BYE, message.body.decode(errors="replace")
            why = "has left" if self.has_left else f"gave up: {said}"
            self._end(said if message.topic == RELAYED else f"{self.name} {why}")

    def _send(self, channel: socket.socket) -> None:
        """Send pieces until a failure."""
        while (taken := self.outbox.take()) is not None:
            moving, piece = taken
            nbytes = 0
            try:
                send_piece(channel, piece, moving.view[piece.offset : piece.offset + piece.nbytes])
                nbytes = piece.nbytes
            except OSError as error:
                self._end_of_channel(error)
                return
            finally:
                self.outbox.put_back(moving, nbytes)

    def _receive(self, channel: socket.socket) -> None:
        """Receive pieces until a failure."""
        try:
            while (moving := self.inbox.place(piece := read_piece(channel))) is not None:
                nbytes = 0
                try:
                    channel.settimeout(self._patience_s)  # inside a piece, the other side does not wait for anything
                    read_into(channel, moving.view[piece.offset : piece.offset + piece.nbytes])
                    channel.settimeout(None)
                    nbytes = piece.nbytes
                finally:
                    self.inbox.put_back(moving, nbytes)
        except OSError as error:
            self._end_of_channel(error)
        except NodeError as error:
            self._end(f"{self.name} runs another program: {error}")

    def _end_of_channel(self, error: OSError) -> None:
        """Report that a connection of tiles is gone, unless the control connection tells why."""
        if not self._has_ended.wait(FAREWELL_S):
            self._end(f"{self.name} was lost: {reason(error)}")

    def _end(self, sentence: str) -> None:
        """Report, once, why the exchange with this node is over."""
        is_first = not self._has_ended.is_set()
        self._has_ended.set()
        if is_first:
            self._lost(self, NodeError(sentence))


def _join(thread: threading.Thread, patience_s: float | None) -> None:
    if thread.ident is not None and thread is not threading.current_thread():
        thread.join(patience_s)
