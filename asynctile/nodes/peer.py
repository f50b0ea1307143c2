"""One other node, as this one talks to it: a control connection for messages, and lines for the pieces of tiles.

The control connection has a thread that reads. A line has one for each direction in which it carries pieces. Errors go to
`lost`, which is called in the thread that met them.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from asynctile.errors import NodeError
from asynctile.nodes.boxes import Inbox, Outbox, Track
from asynctile.nodes.line import Line
from asynctile.nodes.precedence import Precedence
from asynctile.nodes.wire import Message, Said, at, keep_alive, read_message, reason, send_message
from asynctile.threads import start

logger = logging.getLogger(__name__)

#: The topic of an abort that passes on what another node has said or done.
RELAYED = "relayed"
#: Seconds that a lost line waits for a message that says why, and that a farewell may take.
FAREWELL_S = 2.0
#: Seconds after which `close` leaves a thread behind, with its line.
LAST_S = 30.0


class Peer:
    """Node `node`, over its control connection and its lines. patience_s: for a sign of life. precedence: of its pieces.

    lost: called with the error when the node is lost, gives up or leaves. shared: called with (topic, body) of its messages.
    moved: called when a beat tells that more of its work is done. has_left: the node has left in order.
    """

    def __init__(
        self, node: int, control: socket.socket, lines: Sequence[Line], patience_s: float, precedence: Precedence,
        lost: Callable[[Peer, NodeError], None], shared: Callable[[Peer, str, bytes], None], moved: Callable[[], object],
    ) -> None:  # fmt: skip
        self.node = node
        self.outboxes = {track: Outbox(track, precedence) for track in Track}
        self.inboxes = {track: Inbox() for track in Track}
        self._control, self._lines = control, lines
        self._patience_s = patience_s
        self._lost, self._shared, self._moved = lost, shared, moved
        self.name = f"node {node} ({at(self._control.getpeername())})"
        self.has_left = False
        self._writing = threading.Lock()
        #: set once it is known why the node is gone
        self._has_ended = threading.Event()
        control.settimeout(patience_s)
        keep_alive(control)
        self._listener = self._thread("listen", self._listen)
        #: each thread with its line
        self._carriers = [(self._thread("send", self._send, line), line) for line in lines if line.sends]
        self._carriers += [(self._thread("receive", self._receive, line), line) for line in lines if line.receives]

    def start(self) -> None:
        """Start the threads. DeviceError if the system refuses one."""
        start(self._listener, *(thread for thread, _ in self._carriers))

    def say(self, message: Message) -> None:
        """Send a message. A node that cannot be reached is lost."""
        try:
            with self._writing:
                send_message(self._control, message)
        except OSError as error:
            self._end(f"{self.name} was lost: {reason(error)}")

    def check(self) -> None:
        """Find lines that have failed while their threads wait. The node is lost then."""
        try:
            for line in self._lines:
                line.check()
        except OSError as error:
            self._end_of_line(error)

    def fail(self, error: NodeError, farewell: Message | None) -> None:
        """Fail all transfers, and say farewell. The other node closes the connections in turn."""
        self._has_ended.set()
        for box in (*self.outboxes.values(), *self.inboxes.values()):
            box.fail(error)
        if farewell is not None:
            with suppress(OSError), self._writing:
                send_message(self._control, farewell)
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)  # what was sent still arrives
        for line in self._lines:
            line.shut()

    def close(self) -> None:
        """End the threads and close the connections, after `fail`. A line is left open while a thread is inside it."""
        _join(self._listener, FAREWELL_S)
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        _join(self._listener, None)
        busy = list[Line]()
        for thread, line in self._carriers:
            _join(thread, LAST_S)
            if thread.is_alive():
                logger.warning("the thread %s does not end within %g s: it is left behind, with its line to %s", thread.name,
                               LAST_S, self.name)
                busy.append(line)
        self._control.close()
        for line in self._lines:
            if line not in busy:
                line.close()

    def _thread(self, work: str, target: Callable[..., None], *args: Line) -> threading.Thread:
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

    def _send(self, line: Line) -> None:
        """Send pieces until a failure."""
        outbox = self.outboxes[line.track]
        while (taken := outbox.take()) is not None:
            moving, piece = taken
            nbytes = 0
            try:
                line.send(piece, moving.view[piece.offset : piece.offset + piece.nbytes])
                nbytes = piece.nbytes
            except OSError as error:
                self._end_of_line(error)
                return
            finally:
                outbox.put_back(moving, nbytes)

    def _receive(self, line: Line) -> None:
        """Receive pieces until a failure."""
        inbox = self.inboxes[line.track]
        try:
            while (moving := inbox.place(piece := line.header())) is not None:
                nbytes = 0
                try:
                    line.receive(moving.view[piece.offset : piece.offset + piece.nbytes])
                    nbytes = piece.nbytes
                finally:
                    inbox.put_back(moving, nbytes)
        except OSError as error:
            self._end_of_line(error)
        except NodeError as error:
            self._end(f"{self.name} runs another program: {error}")

    def _end_of_line(self, error: OSError) -> None:
        """Report that a line is gone, unless the control connection tells why."""
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
