"""Lines: the connections of two nodes for the pieces of tiles. `SocketLine` sends pieces over a socket.

asynctile/nccl/nccl_line.py has another kind.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Protocol

from asynctile.nodes.boxes import Track
from asynctile.nodes.wire import PieceHeader, keep_alive, read_into, read_piece, send_piece


class Line(Protocol):
    """A connection for pieces. track: of their tiles. sends, receives: whether it carries pieces to the other node, from there.

    One thread sends and another one receives. An OSError says why the line is of no use any more.
    """

    track: Track
    sends: bool
    receives: bool

    def send(self, piece: PieceHeader, view: memoryview) -> None:
        """Send a piece behind its header. `view` may change once this returns or raises."""

    def header(self) -> PieceHeader:
        """Wait for the next header and return it."""

    def receive(self, view: memoryview) -> None:
        """Receive the piece behind the last header. Nothing is written to `view` once this returns or raises."""

    def check(self) -> None:
        """Raise OSError if the line has failed in a way that no thread in `send` or `receive` would notice."""

    def shut(self) -> None:
        """Let what is under way fail, and all later calls. Returns at once."""

    def close(self) -> None:
        """Free everything, after `shut` and after the threads have left."""


class SocketLine:
    """A line over a socket of its own, in both directions. track: of its tiles. patience_s: for each byte within a piece."""

    sends = receives = True

    def __init__(self, connection: socket.socket, track: Track, patience_s: float) -> None:
        self.connection = connection
        self.track = track
        self._patience_s = patience_s
        connection.settimeout(None)
        keep_alive(connection)

    def send(self, piece: PieceHeader, view: memoryview) -> None:
        send_piece(self.connection, piece, view)

    def header(self) -> PieceHeader:
        return read_piece(self.connection)

    def receive(self, view: memoryview) -> None:
        self._limit(self._patience_s)  # inside a piece, the other side does not wait for anything
        try:
            read_into(self.connection, view)
        except BlockingIOError:
            raise TimeoutError from None
        self._limit(0)

    def check(self) -> None:
        pass  # the threads notice everything

    def shut(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.connection.close()

    def _limit(self, seconds: float) -> None:
        """Let each receiving call wait so long; 0 for ever. `settimeout` would limit the thread that sends, too."""
        whole, rest = divmod(seconds, 1)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(whole), int(rest * 1e6)))
