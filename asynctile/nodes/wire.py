"""Bytes over a socket: exact reads with a deadline, small documents, and the frames of pieces and messages.

The socket's own timeout bounds the wait for each byte, a deadline the whole read. All errors are OSErrors; `reason` puts them
into words.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

from asynctile.storage.input import parse_json

#: The most bytes of a document, of a message and of its topic.
DOCUMENT_NBYTES, MESSAGE_NBYTES, TOPIC_NBYTES = 64 << 10, 16 << 20, 256
#: The most bytes of a piece. Tiles are cut into pieces, which take turns on the connections of a pair of nodes.
PIECE_NBYTES = 4 << 20
_LENGTH, _PIECE, _MESSAGE = struct.Struct("!I"), struct.Struct("!QQQI"), struct.Struct("!BHI")


class Said(IntEnum):
    """The kind of a message.

    BEAT: the sender lives, the body says how much of its work is done. SHARE: its word in an agreement. BYE: it leaves in
    order. ABORT: it gave up, the body says why.
    """

    BEAT = 0
    SHARE = 1
    ABORT = 2
    BYE = 3


class PieceHeader(NamedTuple):
    """The header of a piece: bytes offset ... offset + nbytes of transfer `number`, which has `total` bytes."""

    number: int
    total: int
    offset: int
    nbytes: int


class Message(NamedTuple):
    """A message of a control connection. topic: which agreement a SHARE belongs to."""

    kind: Said
    topic: str
    body: bytes


class Deadline:
    """The moment when a conversation over a socket must be over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def apply(self, connection: socket.socket) -> None:
        """Let the socket's next call wait until the deadline. TimeoutError if it has passed."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)


def read_into(connection: socket.socket, view: memoryview, deadline: Deadline | None = None) -> None:
    """Fill `view` from the socket. ConnectionError if the other side closes before, TimeoutError at the deadline."""
    while view:
        if deadline is not None:
            deadline.apply(connection)
        count = connection.recv_into(view)
        if not count:
            raise ConnectionAbortedError
        view = view[count:]


def read(connection: socket.socket, nbytes: int, deadline: Deadline | None = None) -> bytes:
    """Return the next `nbytes` bytes; errors as `read_into`."""
    found = bytearray(nbytes)
    read_into(connection, memoryview(found), deadline)
    return bytes(found)


def encode(document: Any) -> bytes:
    """Return a document with its length in front."""
    content = json.dumps(document).encode()
    return _LENGTH.pack(len(content)) + content


def read_document(connection: socket.socket, deadline: Deadline) -> tuple[Any, bytes]:
    """Return the next document, and its bytes. ConnectionError if no document comes."""
    (nbytes,) = _LENGTH.unpack(read(connection, _LENGTH.size, deadline))
    if nbytes > DOCUMENT_NBYTES:
        raise ConnectionError(f"a document of {nbytes} bytes was announced")
    content = read(connection, nbytes, deadline)
    try:
        return parse_json(content), _LENGTH.pack(nbytes) + content
    except ValueError as error:
        raise ConnectionError(f"a document is not JSON: {error}") from error


def keep_alive(connection: socket.socket) -> None:
    """Send small messages at once, and let the system notice a machine that is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def send_header(connection: socket.socket, piece: PieceHeader) -> None:
    """Send the header of a piece that travels another way."""
    connection.sendall(_PIECE.pack(*piece))


def send_piece(connection: socket.socket, piece: PieceHeader, view: memoryview) -> None:
    """Send a piece behind its header."""
    header = _PIECE.pack(*piece)
    sent = connection.sendmsg((header, view))
    if sent < len(header):
        connection.sendall(header[sent:])
    connection.sendall(view[max(0, sent - len(header)) :])


def read_piece(connection: socket.socket) -> PieceHeader:
    """Return the next header of a piece."""
    return PieceHeader(*_PIECE.unpack(read(connection, _PIECE.size)))


def send_message(connection: socket.socket, message: Message) -> None:
    """Send a message. ValueError if it is too long."""
    topic = message.topic.encode()
    if len(topic) > TOPIC_NBYTES or len(message.body) > MESSAGE_NBYTES:
        raise ValueError(f"a message about {message.topic[:80]!r} has {len(message.body)} bytes, expected at most "
                         f"{MESSAGE_NBYTES}")
    connection.sendall(_MESSAGE.pack(message.kind, len(topic), len(message.body)) + topic + message.body)


def read_message(connection: socket.socket) -> Message:
    """Return the next message. ConnectionError for bytes that are none."""
    kind, topic, body = _MESSAGE.unpack(read(connection, _MESSAGE.size))
    if kind not in tuple(Said) or topic > TOPIC_NBYTES or body > MESSAGE_NBYTES:
        raise ConnectionError("it sent bytes that are no message")
    return Message(Said(kind), read(connection, topic).decode(errors="replace"), read(connection, body))


def closed(connections: Iterable[socket.socket], patience_s: float = 0) -> list[socket.socket]:
    """Return the connections that the other side has closed, though there may be bytes to read. Waits so long for the first."""
    poll, by_descriptor = select.poll(), {connection.fileno(): connection for connection in connections}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLRDHUP)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(1000 * patience_s)]


def reason(error: OSError) -> str:
    """Return what happened, in words."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, ConnectionAbortedError | ConnectionResetError):
        return "it closed the connection"
    words = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
    return words or str(error) or type(error).__name__


def at(address: Any) -> str:
    """Return a socket's address as people write it."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(address: Any) -> str:
    """Return the host of a socket's address, in numbers; of an IPv6 address that only one link has, with the link's name."""
    return socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
