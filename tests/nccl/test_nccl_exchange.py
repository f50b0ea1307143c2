"""The exchange of tiles over NCCL: bytes, order, and every way in which it ends. Agreements are those of TcpExchange."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from asynctile.errors import DeviceError, NodeError
from asynctile.nccl import NcclExchange
from asynctile.nccl.library import load
from asynctile.nccl.nccl_line import AT_ONCE, Admission, NcclLine
from asynctile.nodes import boxes, peer, tcp_exchange
from asynctile.nodes.boxes import Track
from asynctile.nodes.handshake import Hello
from asynctile.nodes.meeting import meet
from asynctile.nodes.wire import Deadline, Message, Said, send_message
from tests.cuda.nccl import NcclError
from tests.nccl.meetings import join, locked, met
from tests.nodes.meetings import SECRET, TERMS, comes, free_address
from tests.nodes.meetings import join as join_by_tcp
from tests.nodes.test_tcp_exchange import SIZES, crossing, ended, flat, outcome, under_way
from tests.settle import HANG_S


def test_tiles_arrive_bit_for_bit_from_locked_and_other_ram_in_any_order(soft_nccl, soft_gpu, monkeypatch):
    monkeypatch.setattr(boxes, "PIECE_NBYTES", 65536)
    rng = np.random.default_rng(1)
    values = [rng.bytes(size) for size in SIZES * 3]
    with met(2, channels=4) as exchanges:
        for run in range(2):
            arrays = [[locked(soft_gpu.open, value) if i % 2 else np.frombuffer(value, np.uint8).copy()
                       for i, value in enumerate(values)] for _ in exchanges]  # fmt: skip
            found = [[locked(soft_gpu.open, bytes(len(value))) if i % 3 else np.zeros(len(value), np.uint8)
                      for i, value in enumerate(values)] for _ in exchanges]  # fmt: skip
            assert set(crossing(exchanges, arrays, found, rng)) == {None}, run
            assert all(array.tobytes() == value for got in found for array, value in zip(got, values, strict=True))
    assert max(soft_nccl.most.values()) <= AT_ONCE, "kernels that find no room on the GPU wait for one another"


def test_three_nodes_exchange_with_each_other(soft_nccl):
    with met(3, channels=1) as exchanges:
        found, futures = {}, []
        for node, exchange in enumerate(exchanges):
            others = [other for other in range(3) if other != node]
            exchange.begin(dict.fromkeys(others, 1), dict.fromkeys(others, 1))
            for other in others:
                found[node, other] = np.zeros(1000, np.int32)
                futures += [under_way(exchange.send, other, 0, np.full(1000, 10 * node + other, np.int32)),
                            under_way(exchange.receive, other, 0, found[node, other])]  # fmt: skip
        assert [outcome(future) for future in futures] == [None] * len(futures)
        assert all((array == 10 * other + node).all() for (node, other), array in found.items())


def test_a_tile_that_waits_for_its_place_or_its_sender_occupies_no_gpu(soft_nccl):
    with ThreadPoolExecutor(1) as pool, met(2, channels=1) as (zero, one):
        for exchange in (zero, one):
            exchange.begin({1 - exchange.node: 1}, {1 - exchange.node: 1})
        before, soft_nccl.early = soft_nccl.launched.copy(), 0  # not the bytes by which NCCL connects
        sent = under_way(zero.send, 1, 0, np.ones(8))  # to a node without a place
        received = under_way(zero.receive, 1, 0, np.zeros(8))  # from a node that does not send
        said = pool.submit(one.share, "here", b"")
        zero.share("here", b"")
        assert said.result(HANG_S) and not sent.done() and not received.done() and soft_nccl.launched == before
        there = under_way(one.receive, 0, 0, np.zeros(8)), under_way(one.send, 0, 0, np.ones(8))
        assert [outcome(future) for future in (sent, received, *there)] == [None] * 4
    assert not soft_nccl.early


def test_a_send_is_over_once_the_other_node_has_the_bytes(soft_nccl):
    """Then a node may leave: an abort loses what NCCL has taken and not delivered."""
    with met(2) as (zero, one):
        zero.begin({1: 1}, {})
        one.begin({}, {0: 1})
        soft_nccl.delivers = False
        sends, found = soft_nccl.launched.total(), np.zeros(8)
        received, sent = under_way(one.receive, 0, 0, found), under_way(zero.send, 1, 0, np.ones(8))
        comes(lambda: soft_nccl.launched.total() == sends + 2 and not soft_nccl.running[0, "send"])
        assert not sent.done()
        with soft_nccl.changed:
            soft_nccl.delivers = True
            soft_nccl.changed.notify_all()
        assert outcome(sent) is outcome(received) is None and found.all()


@pytest.mark.parametrize("kind", ["send", "recv"])
def test_an_abort_ends_kernels_that_wait_for_ever_on_both_nodes(soft_nccl, kind):
    """All at once: a communicator is freed only when no kernel of another one runs."""
    with met(2) as (zero, one):
        soft_nccl.loses = lambda communicator, what: what == kind
        futures = []
        for exchange in (zero, one):
            for track in Track:
                exchange.begin({1 - exchange.node: 1}, {1 - exchange.node: 1}, track)
                futures.append(under_way(exchange.send, 1 - exchange.node, 0, np.ones(8), track))
                futures.append(under_way(exchange.receive, 1 - exchange.node, 0, np.zeros(8), track))
        comes(lambda: soft_nccl.running.total() == (8 if kind == "send" else 4))  # sends end, though nobody has the bytes
        zero.abort("the disk is full")
        assert all("gave up: the disk is full" in str(outcome(future)) for future in futures)
        ended(one)


def test_no_kernel_begins_on_a_line_that_was_shut_while_it_waited_for_its_turn(soft_nccl, monkeypatch):
    monkeypatch.setattr("asynctile.nccl.nccl_line.CALL_S", HANG_S)  # the line keeps its communicator until the thread leaves
    turns, at_lock, gate = [None] * 2, threading.Event(), threading.Event()

    class Gated:
        """A lock before which the second thread waits once `turns` is empty: the receiver begins, and then the sender."""

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __enter__(self) -> None:
            turns.append(None)
            if len(turns) == 2:
                at_lock.set()
                assert gate.wait(HANG_S)
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    class Gate(Admission):
        def __init__(self) -> None:
            super().__init__()
            self.calling = Gated()

    monkeypatch.setattr("asynctile.nccl.nccl_exchange.Admission", Gate)
    with met(2) as (zero, one):
        turns.clear()
        launched = soft_nccl.launched.total()
        zero.begin({1: 1}, {})
        one.begin({}, {0: 1})
        moved = [under_way(one.receive, 0, 0, np.zeros(8)), under_way(zero.send, 1, 0, np.ones(8))]
        assert at_lock.wait(HANG_S)
        zero.abort("for a test")
        gate.set()
        assert all("gave up: for a test" in str(outcome(future)) for future in moved)
        assert soft_nccl.launched.total() == launched + 1


def test_a_failure_behind_the_kernels_is_noticed_with_the_next_beat(soft_nccl, monkeypatch):
    monkeypatch.setattr(tcp_exchange, "BEATS", tcp_exchange.PATIENCE_S / 0.005)
    monkeypatch.setattr(peer, "FAREWELL_S", 0.05)
    with met(2) as (zero, one):
        zero.begin({}, {1: 1})
        waiting = under_way(zero.receive, 1, 0, np.zeros(8))
        soft_nccl.made[0].fault = NcclError("NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error")
        assert "was lost: NCCL failed: NCCL_ERROR_REMOTE_ERROR" in str(outcome(waiting))
        ended(zero, one)


def test_another_size_than_expected_ends_the_exchange_before_nccl_moves_it(soft_nccl):
    with met(2) as (zero, one):
        zero.begin({1: 1}, {})
        one.begin({}, {0: 1})
        sent = under_way(zero.send, 1, 0, np.zeros(5))
        told = Future()
        one.receive(0, 0, flat(np.zeros(1)), told.set_result, "wte[0,0]")
        assert "transfer 0 has 40 bytes there and 8 here, of wte[0,0]" in str(outcome(told))
        outcome(sent)
        assert "start all nodes with the same options" in ended(zero)[0]


def test_nothing_outlives_an_exchange(soft_nccl, soft_gpu):
    before = set(threading.enumerate())
    with met(2) as (_, one):
        one.close()
        one.close()
    assert not {thread for thread in threading.enumerate() if thread.name.startswith("asynctile-")} - before
    assert all(not driver.streams and not driver.events and not driver.pinned for driver in soft_gpu.opened)


def test_a_node_of_another_network_is_refused(soft_nccl):
    address = free_address()
    with ThreadPoolExecutor(1) as pool:
        hosting = pool.submit(join, 0, 2, address)
        with pytest.raises(NodeError, match="node 1 has network tcp, and node 0 has network nccl; start all nodes with"):
            join_by_tcp(1, 2, address)
        with join(1, 2, address), hosting.result(HANG_S):
            pass


def test_a_refusal_of_nccl_ends_the_meeting_on_both_sides(soft_nccl):
    address = free_address()
    soft_nccl.refuses = NcclError("NCCL_ERROR_INVALID_USAGE: Duplicate GPU detected")
    with ThreadPoolExecutor(2) as pool:
        for meeting in [pool.submit(join, node, 2, address) for node in range(2)]:
            said = str(meeting.exception(HANG_S))
            assert said.startswith("NCCL does not connect the line 0 of nodes") and "Duplicate GPU" in said
            assert "NCCL_DEBUG=WARN shows why" in said


@pytest.fixture
def held_up(soft_nccl, monkeypatch):
    """Let NCCL connect nobody until the test is over or sets the event. Gives that event, and the calls that hang."""
    gate, hanging = threading.Event(), []

    def hang(*args: Any) -> None:
        hanging.append(args)
        gate.wait()
        raise NcclError("NCCL_ERROR_REMOTE_ERROR")

    monkeypatch.setattr(soft_nccl, "NcclCommunicator", hang)
    monkeypatch.setattr("asynctile.nccl.nccl_exchange.LAST_S", 0.01)
    monkeypatch.setattr("asynctile.nccl.nccl_exchange.FAREWELL_S", 0.01)
    yield gate, hanging
    gate.set()
    comes(lambda: not [thread for thread in threading.enumerate() if thread.name == "asynctile-nccl-connect"])


def test_a_node_that_never_connects_nccl_ends_the_meeting_in_time(held_up, soft_gpu, monkeypatch):
    address, (gate, hanging) = free_address(), held_up

    class Clock:
        def monotonic(self) -> float:
            return time.monotonic() + (HANG_S if len(hanging) == 2 else 0)

    monkeypatch.setattr("asynctile.nccl.nccl_exchange.time", Clock())
    with ThreadPoolExecutor(2) as pool:
        meetings = [pool.submit(join, node, 2, address) for node in range(2)]
        assert all("within 200 s; NCCL_DEBUG=WARN" in str(meeting.exception(HANG_S)) for meeting in meetings)
        gate.set()
    comes(lambda: not [thread for thread in threading.enumerate() if thread.name == "asynctile-nccl-connect"])
    assert all(not driver.streams and not driver.events and not driver.pinned for driver in soft_gpu.opened)


def test_a_node_that_is_killed_while_nccl_connects_is_noticed_at_once(held_up, soft_nccl):
    address = free_address()
    hello = Hello(node=1, nodes=2, terms={**TERMS, "network": "nccl", "NCCL": str(soft_nccl.get_version())})
    with ThreadPoolExecutor(1) as pool:
        hosting = pool.submit(join, 0, 2, address)
        connections, listener = meet(hello, address, SECRET, 4, HANG_S, bool)
        listener.close()
        send_message(connections[0, 0], Message(Said.BEAT, "", b"1"))
        for connection in connections.values():
            connection.close()
        assert str(hosting.exception(HANG_S)) == "node 1 was lost: it closed the connection"


def test_a_node_that_fails_while_nccl_connects_tells_the_others_why(held_up, monkeypatch):
    connect = NcclLine.connect

    def refused(line: NcclLine, deadline: Deadline) -> None:
        if line.name.endswith("nodes 1 and 0"):
            raise DeviceError("the GPU has no memory")
        connect(line, deadline)

    monkeypatch.setattr(NcclLine, "connect", refused)
    address = free_address()
    with ThreadPoolExecutor(2) as pool:
        zero, one = [pool.submit(join, node, 2, address) for node in range(2)]
        assert str(one.exception(HANG_S)) == "the GPU has no memory"
        assert str(zero.exception(HANG_S)) == "node 1 gave up: the GPU has no memory"


@pytest.mark.parametrize("device", ["cpu", "emulated*2"])
def test_a_device_that_is_no_gpu_is_refused(device):
    with pytest.raises(ValueError, match=r"'nccl' carries tiles between GPUs, and device is '(cpu|emulated)'; choose 'cuda:N'"):
        NcclExchange.meet(0, 2, ("127.0.0.1", 1), SECRET, TERMS, device=device)


@pytest.mark.parametrize("there", [None, False])
def test_without_nccl_its_package_is_named(monkeypatch: pytest.MonkeyPatch, there: Any) -> None:
    """CuPy is missing, or finds no library."""
    module = None if there is None else type("cuda", (), {"nccl": type("nccl", (), {"available": there})})
    monkeypatch.setitem(sys.modules, "cupy.cuda", module)
    with pytest.raises(DeviceError, match=r"^NCCL does not load \(.*\); pip install 'asynctile\[nccl13\]'.*network 'tcp'$"):
        load()


