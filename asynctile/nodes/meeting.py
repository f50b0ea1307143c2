"""The meeting of all nodes, before the exchange begins: who is there, under which terms, and one connection for each channel.

Nodes join node 0, which compares their terms with its own. When all have joined, node 0 tells each where the others listen.
Then every node calls the nodes with lower numbers, once for each channel that is missing. The connection by which a node joined
is the control connection of the two.
"""

from __future__ import annotations

import errno
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from asynctile.errors import NodeError
from asynctile.nodes.handshake import PATIENCE_S, Hello, call
from asynctile.nodes.listener import Listener
from asynctile.nodes.wire import Deadline, at, closed, encode, host_of, read_document, reason

#: Seconds between two tries to reach a node that does not listen yet, and between two looks at whether to go on waiting.
AGAIN_S = 0.1
#: Seconds that one try may take.
TRY_S = 3.0
#: Seconds in which a node that gives up tries to tell the others why.
TELL_S = 2.0
#: Connections by (other node, channel); channel 0 is the control connection.
Connections = dict[tuple[int, int], socket.socket]


class Meeting:
    """The meeting as node `own.node` sees it.

    channels: of tiles, between each pair of nodes. wait_s: for all to come. check: called while this waits; raises to end that.
    """

    def __init__(self, own: Hello, secret: bytes, channels: int, wait_s: float, check: Callable[[], object] = bool) -> None:
        self._own = own
        self._check = check
        self._secret = secret
        self._channels = channels
        self._end = time.monotonic() + wait_s
        self._wait_s = wait_s
        self._session = ""
        #: the hellos that were welcomed, and by the same keys the connections
        self._hellos: dict[tuple[int, int], Hello] = {}
        self._there: Connections = {}
        self._changed = threading.Condition()
        self._is_over = False
        #: why another node does not take part
        self._refusal: NodeError | None = None

    def host(self, listener: Listener) -> Connections:
        """Wait for all nodes as node 0; return its connections. NodeError if one does not come, or gives up.

        If node 0 does not go on, the nodes that have joined are told why.
        """
        self._session = secrets.token_hex(16)
        listener.serve(self._secret, self._welcome, self._admit)
        others = range(1, self._own.nodes)
        try:
            self._await({(node, 0) for node in others}, f"not joined at {at(listener.address)}")
            self._check_own()
        except BaseException as error:
            self._dismiss(str(error) if error is self._refusal else f"node 0 gave up: {self._own.gave_up or error}")
            raise
        roster = {str(node): (host_of(self._there[node, 0].getpeername()), self._hellos[node, 0].port) for node in others}
        for node in others:
            self._told(node, encode(roster))
        self._await({(node, channel) for node in others for channel in self._all}, "not connected for tiles", True)
        return self._done()

    def join(self, address: tuple[str, int], first: socket.socket, listener: Listener) -> Connections:
        """Join node 0 at `address` over a new connection `first`; return this node's connections. NodeError if it cannot."""
        own = self._own = replace(self._own, port=listener.address[1])
        self._there[0, 0] = first
        answer = call(first, own, self._secret, Deadline(PATIENCE_S))
        self._check_own()
        with self._changed:
            self._session = str(answer.get("session"))
        listener.serve(self._secret, self._welcome, self._admit)
        roster = self._roster(address)
        for node, channel in self._to_call():
            place = address if node == 0 else (roster[str(node)][0], roster[str(node)][1])
            connection = reach(place, PATIENCE_S, self._check, f"node {node}")
            with self._changed:
                self._there[node, channel] = connection
            hello = replace(own, session=self._session, channel=channel)
            call(connection, hello, self._secret, Deadline(PATIENCE_S))
        others = range(own.node + 1, own.nodes)
        self._await({(node, channel) for node in others for channel in self._all}, "not connected for tiles", True)
        return self._done()

    def give_up(self) -> None:
        """Close all connections."""
        with self._changed:
            self._is_over = True
            for connection in self._there.values():
                connection.close()

    def _roster(self, address: tuple[str, int]) -> Any:
        """Wait until node 0 tells where the nodes listen; return host and port of each, by its number."""
        try:
            while not select.select([self._there[0, 0]], [], [], AGAIN_S)[0]:
                self._check()
                if time.monotonic() >= self._end:
                    raise NodeError(f"not all of the {self._own.nodes} nodes joined node 0 at {at(address)} within "
                                    f"{self._wait_s:g} s")
            roster = read_document(self._there[0, 0], Deadline(PATIENCE_S))[0]
        except InterruptedError:  # by `check`
            raise
        except OSError as error:
            raise NodeError(f"node 0 at {at(address)} has left: {reason(error)}") from error
        if "refused" in roster:
            raise NodeError(f"the nodes at {at(address)} did not meet: {roster['refused']}")
        return roster

    def _check_own(self) -> None:
        """Raise NodeError if this node came only to say that it gives up."""
        if self._own.gave_up:
            raise NodeError(self._own.gave_up)

    @property
    def _all(self) -> range:
        return range(1 + self._channels)

    def _to_call(self) -> Iterator[tuple[int, int]]:
        for node in range(self._own.node):
            yield from ((node, channel) for channel in self._all if (node, channel) != (0, 0))

    def _welcome(self, hello: Hello) -> dict[str, Any]:
        """Accept a caller and return the answer, or raise NodeError with the reason."""
        own, key = self._own, (hello.node, hello.channel)
        if hello.nodes != own.nodes:
            raise NodeError(f"node {hello.node} expects {hello.nodes} nodes and node {own.node} expects {own.nodes}; "
                            "start all nodes with the same number of nodes")
        if not own.node < hello.node < own.nodes or hello.channel > self._channels:
            raise NodeError(f"a node of number {hello.node} cannot call node {own.node} of {own.nodes}; the others are 1 to "
                            f"{own.nodes - 1}")
        if not (hello.gave_up or own.gave_up):
            _check_terms(hello, own)
        with self._changed:
            self._changed.wait_for(lambda: self._session, PATIENCE_S)  # another node may learn of us before we know ourselves
            if key in self._hellos and not self._has_gone(key):
                raise NodeError(f"node {hello.node} has joined already; give each node a number of its own, and start all of "
                                "them to begin again")
            if hello.session != (self._session if hello.channel or own.node else ""):
                raise NodeError(f"node {hello.node} belongs to another training; start all nodes again")
            self._hellos[key] = hello
        return {"session": self._session}

    def _admit(self, hello: Hello, connection: socket.socket) -> None:
        with self._changed:
            if self._is_over:
                connection.close()
            elif hello.gave_up:
                self._refusal = NodeError(f"node {hello.node} gave up: {hello.gave_up}")
                self._changed.notify_all()
                connection.close()
            else:
                if (key := (hello.node, hello.channel)) in self._there:
                    self._there[key].close()  # of a node that has gone
                self._there[key] = connection
                self._changed.notify_all()

    def _has_gone(self, key: tuple[int, int]) -> bool:
        """Return whether a node has closed its connection before all had met; then another one may take its place."""
        connection = self._there.get(key)
        return not self._is_over and connection is not None and bool(closed([connection]))

    def _await(self, keys: set[tuple[int, int]], what: str, have_joined: bool = False) -> None:
        """Wait for these connections. what: what a node without them has not done. have_joined: nobody may be replaced."""
        with self._changed:
            while missing := sorted({node for node, _ in self._missing(keys, have_joined)}):
                self._check()
                if self._refusal is not None:
                    raise self._refusal
                for node in {0, *missing} if have_joined else ():
                    if self._has_gone((node, 0)):
                        raise NodeError(f"node {node} left before all had met; see there for the reason")
                if (left := self._end - time.monotonic()) <= 0:
                    break
                self._changed.wait(min(left, AGAIN_S))
            else:
                return
        names, have = ("nodes", "have") if len(missing) > 1 else ("node", "has")
        raise NodeError(f"{names} {', '.join(map(str, missing))} of {self._own.nodes} {have} {what} within {self._wait_s:g} s; "
                        "start all nodes within this time")

    def _missing(self, keys: set[tuple[int, int]], have_joined: bool) -> set[tuple[int, int]]:
        return {key for key in keys if key not in self._there or (not have_joined and self._has_gone(key))}

    def _dismiss(self, why: str) -> None:
        """Tell the nodes that wait for the roster why there will be none."""
        with self._changed:
            self._is_over = True
        for node, _ in self._there:
            with suppress(NodeError):
                self._told(node, encode({"refused": why}))

    def _told(self, node: int, content: bytes) -> None:
        try:
            self._there[node, 0].sendall(content)
        except OSError as error:
            raise NodeError(f"node {node} left before all had met: {reason(error)}") from error

    def _done(self) -> Connections:
        with self._changed:
            self._is_over = True
            return dict(self._there)


def meet(
    own: Hello, address: tuple[str, int], secret: bytes, channels: int, wait_s: float, check: Callable[[], object]
) -> tuple[Connections, Listener]:
    """Meet all nodes as node `own.node`; return its connections, and the listener that answers late callers.

    address: at which node 0 listens. Others: as in Meeting. ValueError for numbers that do not exist.
    """
    if not 0 <= own.node < own.nodes:
        raise ValueError(f"node is {own.node}, expected a number from 0 to {own.nodes - 1}, since there are {own.nodes} nodes")
    if not 0 < address[1] < 1 << 16:
        raise ValueError(f"{at(address)} has port {address[1]}, expected 1 to 65535")
    meeting = Meeting(own, secret, channels, wait_s, check)
    if own.node == 0:
        listener, first = Listener(address), None
    else:
        first = reach(address, wait_s, check)
        try:
            listener = Listener((host_of(first.getsockname()), 0))
        except NodeError:
            first.close()
            raise
    try:
        return (meeting.host(listener) if first is None else meeting.join(address, first, listener)), listener
    except BaseException:
        listener.close()
        meeting.give_up()
        raise


def decline(own: Hello, address: tuple[str, int], secret: bytes, why: str, check: Callable[[], object] = bool) -> None:
    """Tell the other nodes that node `own.node` does not take part, so that none of them waits for it. Others: as in `meet`.

    Node 0 tells the nodes that wait for it. Another node tells node 0, which tells those that have joined. Ends after `TELL_S`.
    """
    with suppress(NodeError, ValueError):  # the reason of this node is the error to report
        meet(replace(own, gave_up=why), address, secret, 0, TELL_S, check)


def apart(connections: Connections) -> tuple[dict[int, socket.socket], dict[int, list[socket.socket]]]:
    """Return the control connections, and those for tiles in the order of their channels, both by node."""
    controls = {node: one for (node, channel), one in connections.items() if channel == 0}
    others = {node: [connections[key] for key in sorted(connections) if key[0] == node and key[1]] for node in controls}
    return controls, others


def reach(
    address: tuple[str, int], wait_s: float, check: Callable[[], object] = bool, whom: str = "node 0"
) -> socket.socket:  # fmt: skip
    """Return a connection to an address. Tries again while nobody listens or answers there. NodeError after `wait_s`.

    check: as in Meeting. whom: the node that should be there, for messages.
    """
    end = time.monotonic() + wait_s
    while True:
        check()
        left = end - time.monotonic()
        try:
            connection = socket.create_connection(address, max(AGAIN_S, min(left, TRY_S)), all_errors=True)
            if connection.getsockname() != connection.getpeername():
                return connection
            connection.close()  # nobody listens there, and the system has given this socket the very port that it calls
        except (OSError, ExceptionGroup) as error:
            # The host may have several addresses, with an error each.
            each: Sequence[Any] = error.exceptions if isinstance(error, ExceptionGroup) else [error]
            passing = [one for one in each if _may_pass(one)]
            if not passing or left <= AGAIN_S:
                raise NodeError(f"nothing can be reached at {at(address)}: {reason((passing or each)[-1])}; check the address, "
                                f"whether {whom} runs there, and that no firewall is between") from error
        time.sleep(AGAIN_S)


def _may_pass(error: OSError) -> bool:
    """Return whether an address may be reached later, once its machine is up and a node listens."""
    return isinstance(error, ConnectionRefusedError | TimeoutError) or error.errno == errno.EHOSTUNREACH


def _check_terms(hello: Hello, own: Hello) -> None:
    """Raise NodeError with the first term in which two nodes differ."""
    for name in dict.fromkeys((*own.terms, *hello.terms)):
        theirs, ours = hello.terms.get(name), own.terms.get(name)
        if theirs != ours:
            raise NodeError(f"node {hello.node} has {name} {theirs}, and node {own.node} has {name} {ours}; start all nodes "
                            "with the same version and options")
