"""The listener of a node: it answers every caller for as long as the exchange lives, and logs whom it refused and why.

Each handshake has a thread of its own and a few seconds. A stranger who connects and says nothing delays nobody.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from asynctile.errors import NodeError
from asynctile.nodes.handshake import Hello, answer_call
from asynctile.nodes.wire import at, reason
from asynctile.threads import start

logger = logging.getLogger(__name__)

#: Callers whose handshake runs at once. Others wait in the system's queue.
AT_ONCE = 8


class Listener:
    """Listens at `address` (host, port; port 0: any). From `serve` on, threads answer callers.

    NodeError if the address cannot be had.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        try:
            found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
            family, *_, place = min(found, key=lambda one: one[0])  # at IPv4, if the host has both
            self._socket = socket.create_server(place, family=family, backlog=64)
        except OSError as error:
            raise NodeError(f"this node cannot listen at {at(address)}: {reason(error)}; choose another address or "
                            "port") from error
        self._callers: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(AT_ONCE)
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> Any:
        """The socket address at which this listens; its port is never 0."""
        return self._socket.getsockname()

    def serve(
        self, secret: bytes, welcome: Callable[[Hello], dict[str, Any]], admit: Callable[[Hello, socket.socket], None]
    ) -> None:
        """Answer callers from now on.

        welcome: as in `answer_call`. admit: takes the connection of a caller that was accepted. Both are called in threads.
        """

        def answer(connection: socket.socket, address: Any) -> None:
            try:
                hello = answer_call(connection, secret, welcome)
            except NodeError as refusal:
                if not self._is_closed:
                    logger.warning("refused a connection from %s: %s", at(address), refusal)
                connection.close()
            else:
                admit(hello, connection)
            finally:
                with self._lock:
                    self._callers.discard(connection)
                self._slots.release()

        def accept() -> None:
            while True:
                self._slots.acquire()
                try:
                    connection, address = self._socket.accept()
                except OSError:  # closed
                    return
                with self._lock:
                    self._callers.add(connection)
                thread = threading.Thread(target=answer, args=(connection, address), name="asynctile-handshake", daemon=True)
                start(thread)

        self._thread = threading.Thread(target=accept, name="asynctile-listener", daemon=True)
        start(self._thread)

    def close(self) -> None:
        """Stop listening, and end the handshakes that are under way."""
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which `close` alone does not
        self._socket.close()
        self._slots.release()
        with self._lock:
            for connection in self._callers:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join()
