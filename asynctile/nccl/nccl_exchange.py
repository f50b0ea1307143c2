"""The exchange of tiles between nodes over NCCL: `NcclExchange`. Agreements, beats and the secret stay with TCP.

Only sends and receives of tiles: no sum depends on NCCL. Each pair of nodes has lines in both directions, each with a
communicator of two ranks and a stream of its own. NCCL knows no numbers of messages, so transfers go in order, as over TCP.

Tiles wait in locked RAM at both ends, as they do for TCP, so programs, schedules and plans are the same. A tile crosses the
link between RAM and GPU once more at each end. The way not taken: from GPU to GPU without RAM. It needs places on the GPU that
no other tile takes while another node is late.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self

from asynctile.device import resolved
from asynctile.device.cupy_driver import open_driver
from asynctile.device.names import names_of
from asynctile.errors import BudgetError, DeviceError, NodeError
from asynctile.nccl.library import load
from asynctile.nccl.nccl_line import LAST_S, Admission, NcclLine
from asynctile.nodes.boxes import Track
from asynctile.nodes.handshake import Hello
from asynctile.nodes.meeting import AGAIN_S, apart, decline, meet
from asynctile.nodes.peer import FAREWELL_S
from asynctile.nodes.tcp_exchange import NCCL, NETWORK, PATIENCE_S, WAIT_S, TcpExchange
from asynctile.nodes.wire import Deadline, Message, Said, closed, read_message, reason, send_message
from asynctile.threads import start


class NcclExchange(TcpExchange):
    """An exchange whose tiles travel over NCCL between the first GPUs of the nodes. Otherwise as TcpExchange."""

    @classmethod
    def meet(
        cls, node: int, nodes: int, address: tuple[str, int], secret: bytes, terms: Mapping[str, str], *,
        channels: int = 1, patience_s: float = PATIENCE_S, wait_s: float = WAIT_S, check: Callable[[], object] = bool,
        device: str = "auto",
    ) -> Self:  # fmt: skip
        """Meet the other nodes, connect NCCL and return the exchange.

        device: as in Engine; its first GPU carries the tiles. channels: of each direction between two nodes, for each way.
        wait_s: for all to join, and once more for NCCL. Others: as for TcpExchange. ValueError for a device that is no GPU,
        DeviceError without a GPU or NCCL, NodeError if NCCL does not connect.
        """
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # see nccl_line.py; without effect where CUDA has begun
        hello, admission = Hello(node=node, nodes=nodes, terms={**terms, NETWORK: NCCL}), Admission()
        try:
            driver, library = open_driver(_gpu(device)), load()
        except (DeviceError, ValueError) as error:
            decline(hello, address, secret, str(error), check)
            raise
        hello = replace(hello, terms={**hello.terms, "NCCL": str(library.get_version())})
        connections, listener = meet(hello, address, secret, 2 * len(Track) * channels, wait_s, check)
        controls, others = apart(connections)
        lines = {
            other: [NcclLine(f"the line {number} of nodes {node} and {other}", one, Track(number // 2 % len(Track)),
                             (number % 2 == 0) == (node < other), driver, library, admission) for number, one in enumerate(own)]
            for other, own in others.items()
        }  # fmt: skip
        try:
            # The least pair that is not connected has both its nodes at it, so no node waits in a circle.
            pairs = sorted(others, key=lambda other: (min(node, other), max(node, other)))
            _connect([line for other in pairs for line in lines[other]], controls, wait_s, check)
        except BaseException:
            listener.close()
            raise
        return cls(node, controls, lines, listener, patience_s)


def _gpu(device: str) -> str:
    """Return the first GPU of a device. ValueError if it is none."""
    first = names_of(resolved(device))[0]
    if not first.startswith("cuda"):
        raise ValueError(f"the network 'nccl' carries tiles between GPUs, and device is {first!r}; choose 'cuda:N', or the "
                         "network 'tcp'")
    return first


def _connect(
    lines: Sequence[NcclLine], controls: Mapping[int, socket.socket], wait_s: float, check: Callable[[], object]
) -> None:  # fmt: skip
    """Connect lines one after the other. NodeError for the first that fails, or if that takes longer than `wait_s`.

    controls: the control connection to each other node, over which NodeError comes if that node gives up or is lost.

    Closes all connections after any error. NCCL may wait for ever for a node that is gone. So a thread connects. It is left
    behind then, and closes the lines if NCCL ever lets it go.
    """
    connected, failed, end = list[NcclLine](), list[Exception](), time.monotonic() + wait_s
    is_given_up = threading.Event()

    def connect() -> None:
        try:
            for line in lines:
                line.connect(Deadline(end - time.monotonic()))
                connected.append(line)
        except Exception as error:
            failed.append(error)
        if is_given_up.is_set():
            _close(lines)

    thread = threading.Thread(target=connect, name="asynctile-nccl-connect", daemon=True)
    start(thread)
    try:
        while thread.is_alive() and not closed(controls.values()):
            thread.join(AGAIN_S)
            check()
            if time.monotonic() >= end and thread.is_alive():
                late = lines[min(len(connected), len(lines) - 1)]
                raise NodeError(f"NCCL has not connected {late.name} within {wait_s:g} s; {_REMEDY}")
        thread.join(FAREWELL_S)  # where another node has left, an error of this node's own says more
        if thread.is_alive() or (failed and isinstance(failed[0], _CUT)):
            gone = closed(controls.values(), FAREWELL_S)
            if lost := [node for node in controls if controls[node] in gone]:
                raise NodeError(_last_words(lost[0], controls[lost[0]]))
        if failed and isinstance(failed[0], BudgetError | DeviceError):
            raise failed[0]
        if failed:
            words = reason(failed[0]) if isinstance(failed[0], OSError) else failed[0]
            raise NodeError(f"NCCL does not connect {lines[len(connected)].name}: {words}; {_REMEDY}") from failed[0]
    except BaseException as error:
        is_given_up.set()
        for control in controls.values():
            with suppress(OSError):
                send_message(control, Message(Said.ABORT, "", (str(error) or type(error).__name__).encode()))
            control.close()
        for line in lines:
            line.shut()
        thread.join(LAST_S)
        if not thread.is_alive():
            _close(lines)
        raise


def _last_words(node: int, control: socket.socket) -> str:
    """Return what became of a node that has closed its control connection."""
    try:
        while (message := read_message(control)).kind is not Said.ABORT:
            pass  # beats of a node that had connected
    except OSError as error:
        return f"node {node} was lost: {reason(error)}"
    return f"node {node} gave up: {message.body.decode(errors='replace')}"


def _close(lines: Sequence[NcclLine]) -> None:
    for line in lines:
        line.close()


#: Errors of a line whose other side has gone.
_CUT = ConnectionAbortedError | ConnectionResetError | BrokenPipeError
_REMEDY = "NCCL_DEBUG=WARN shows why, NCCL_SOCKET_IFNAME chooses the network, and the network 'tcp' needs no NCCL"
