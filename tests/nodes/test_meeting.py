"""Nodes that meet, and callers that do not belong: each is refused in one line on both sides, and the others meet anyway."""

import logging
import socket
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace

import pytest

from asynctile.errors import NodeError
from asynctile.nodes import handshake, meeting
from asynctile.nodes.handshake import Hello, call
from asynctile.nodes.listener import Listener
from asynctile.nodes.meeting import Meeting, decline, reach
from asynctile.nodes.tcp_exchange import TcpExchange
from asynctile.nodes.wire import Deadline
from tests.nodes.meetings import SECRET, TERMS, comes, free_address, join, met
from tests.settle import HANG_S


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_all_nodes_meet(nodes):
    with met(nodes) as exchanges:
        assert [(exchange.node, exchange.nodes) for exchange in exchanges] == [(node, nodes) for node in range(nodes)]


@pytest.fixture
def hosting():
    """A function that starts node 0 of two, and one that ends the meeting: node 1 joins and both exchange a word."""
    address = free_address()
    with ThreadPoolExecutor(2) as pool:
        host = pool.submit(join, 0, 2, address)

        def finish():
            with join(1, 2, address) as one, host.result(HANG_S) as zero:
                told = pool.submit(zero.share, "ready", b"0")
                assert one.share("ready", b"1") == told.result(HANG_S) == [b"0", b"1"]

        yield address, finish


REFUSED = {
    "another secret": ({"secret": b"not the secret of all"}, "the secrets differ"),
    "another version": ({"terms": {"version": "2", "replicas": "4"}}, "node 1 has version 2, and node 0 has version 1"),
    "other replicas": ({"terms": {"version": "1", "replicas": "2"}}, "node 1 has replicas 2, and node 0 has replicas 4"),
    "a term more": ({"terms": {"version": "1", "replicas": "4", "x": "y"}}, "node 1 has x y, and node 0 has x None"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_node_that_differs_is_refused_on_both_sides_and_another_takes_its_place(hosting, case, caplog):
    options, words = REFUSED[case]
    address, finish = hosting
    with caplog.at_level(logging.WARNING), pytest.raises(NodeError, match=words):
        join(1, 2, address, **options)
    finish()
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("refused a connection from 127.0.0.1:") and words in line and "\n" not in line


@pytest.mark.parametrize(("changes", "words"), [
    ({"nodes": 3}, "node 1 expects 3 nodes and node 0 expects 2"), ({"node": 5}, "a node of number 5 cannot call node 0 of 2"),
    ({"node": 0}, "a node of number 0 cannot call node 0"), ({"channel": 9}, "a node of number 1 cannot call"),
    ({"session": "another"}, "node 1 belongs to another training"),
])  # fmt: skip
def test_a_caller_of_another_meeting_is_refused(hosting, changes, words):
    address, finish = hosting
    hello = Hello(**{"node": 1, "nodes": 2, "terms": {**TERMS, "network": "tcp"}, **changes})
    with reach(address, HANG_S) as connection, pytest.raises(NodeError, match=words):
        call(connection, hello, SECRET, Deadline(HANG_S))
    finish()


def test_strangers_delay_nobody(hosting, monkeypatch):
    monkeypatch.setattr(handshake, "PATIENCE_S", HANG_S)
    address, finish = hosting
    strangers = [reach(address, HANG_S) for _ in range(3)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    finish()
    for stranger in strangers:
        stranger.close()


def test_a_node_that_joins_twice_is_refused():
    address = free_address()
    with ThreadPoolExecutor(3) as pool:
        host = pool.submit(join, 0, 3, address)
        (second,), (first,) = wait([pool.submit(join, 1, 3, address) for _ in range(2)], HANG_S, FIRST_COMPLETED)
        assert "node 1 has joined already; give each node a number of its own" in str(second.exception())
        exchanges = [join(2, 3, address), first.result(HANG_S), host.result(HANG_S)]
        list(pool.map(TcpExchange.close, exchanges))


def test_a_node_that_comes_too_late_is_refused_and_the_others_live_on():
    address = free_address()
    with ThreadPoolExecutor(2) as pool:
        host = pool.submit(join, 0, 2, address)
        with join(1, 2, address) as one, host.result(HANG_S) as zero:
            with pytest.raises(NodeError, match=r"node 1 was refused at .*: node 1 has joined already"):
                join(1, 2, address)
            told = pool.submit(zero.share, "x", b"")
            one.share("x", b"")
            told.result(HANG_S)


def test_a_node_that_died_before_all_had_met_may_be_started_again():
    address = free_address()
    with ThreadPoolExecutor(2) as pool:
        host = pool.submit(join, 0, 3, address)
        reach(address, HANG_S).close()
        with pytest.raises(NodeError, match=r"not all of the 3 nodes joined node 0 at 127.0.0.1:\d+ within 0.2 s"):
            join(1, 3, address, wait_s=0.2)
        rest = [pool.submit(join, 1, 3, address), join(2, 3, address)]
        exchanges = [host.result(HANG_S), rest[0].result(HANG_S), rest[1]]
        list(pool.map(TcpExchange.close, exchanges))


def test_a_port_in_use_is_refused_at_once():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()
        with pytest.raises(NodeError, match=r"cannot listen at 127.0.0.1:\d+: Address already in use; choose another"):
            join(0, 2, address)


@pytest.mark.parametrize(("address", "words"), [
    (("127.0.0.1", 1), "nothing can be reached at 127.0.0.1:1: Connection refused"),
    (("no.such.host.invalid", 5), "nothing can be reached at no.such.host.invalid:5: "),
])  # fmt: skip
def test_an_unreachable_address_is_refused(address, words):
    with pytest.raises(NodeError, match=words):
        join(1, 2, address, wait_s=0.2)


def resolve(monkeypatch, *hosts):
    """Let each host name resolve to these addresses, in this order."""
    found = [(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, 6, "") for host in hosts]
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, port, *args, **options: [
        (*how, (host, port)) for how, host in zip(found, hosts, strict=True)])  # fmt: skip


@pytest.mark.parametrize("hosts", [("fe80::1", "127.0.0.1"), ("127.0.0.1", "fe80::1")])
def test_a_host_of_two_addresses_is_waited_for_though_one_cannot_be_reached(monkeypatch, hosts):
    _, port = free_address()
    tries = []
    resolve(monkeypatch, *hosts)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(join, 1, 2, ("name", port), check=lambda: tries.append(1))
        comes(lambda: len(tries) > 2 or joining.done())
        with join(0, 2, ("name", port)), joining.result(HANG_S):
            pass


def test_a_host_of_an_ipv6_address_alone_is_listened_at(monkeypatch):
    _, port = free_address()
    resolve(monkeypatch, "::1")
    with pytest.raises(NodeError, match=r"node 1 of 2 has not joined at \[::1\]:\d+ within"):
        join(0, 2, ("name", port), wait_s=0.1)


def test_a_node_that_cannot_reach_another_one_names_it(monkeypatch):
    address = free_address()
    monkeypatch.setattr(meeting, "PATIENCE_S", 0.2)
    monkeypatch.setattr(meeting, "replace", lambda own, **changes: replace(own, **{**changes, "port": 1}))  # nobody is there
    with ThreadPoolExecutor(2) as pool:
        host, first = pool.submit(join, 0, 3, address), pool.submit(join, 1, 3, address)
        with pytest.raises(NodeError, match=r"nothing can be reached at 127.0.0.1:1: .*, whether node 1 runs there"):
            join(2, 3, address)
        host.result(HANG_S).close()
        with pytest.raises(NodeError, match=r"node [02] left before all had met; see there for the reason"):
            first.result(HANG_S)


def test_a_node_that_leaves_before_it_has_connected_ends_the_wait_at_once(monkeypatch):
    address, joined = free_address(), Meeting.join

    def leaving(self, address, first, listener):
        self._to_call = lambda: iter(())
        joined(self, address, first, listener)
        raise NodeError("this node has had enough")

    monkeypatch.setattr(Meeting, "join", leaving)
    with ThreadPoolExecutor(1) as pool:
        host = pool.submit(join, 0, 2, address)
        with pytest.raises(NodeError, match="has had enough"):
            join(1, 2, address)
        assert str(host.exception(HANG_S)) == "node 1 left before all had met; see there for the reason"


@pytest.mark.parametrize(("node", "port", "words"), [(2, 5, "node is 2, expected"), (-1, 5, "node is -1"), (0, 1 << 16, "port"),
                                                    (1, 0, "127.0.0.1:0 has port 0, expected 1 to 65535")])  # fmt: skip
def test_numbers_that_do_not_exist_are_refused(node, port, words):
    with pytest.raises(ValueError, match=words):
        join(node, 2, ("127.0.0.1", port))


def test_a_server_of_another_kind_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        joining = pool.submit(join, 1, 2, server.getsockname())
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"220 mail.example.org ESMTP\r\n")
            assert "something that is not asynctile is there" in str(joining.exception(HANG_S))


def test_nodes_that_never_come_are_named():
    with pytest.raises(NodeError, match=r"nodes 1, 2 of 3 have not joined at 127.0.0.1:\d+ within 0.1 s"):
        TcpExchange.meet(0, 3, free_address(), SECRET, {}, wait_s=0.1)


@pytest.mark.parametrize("who", [0, 2])
def test_a_node_that_gives_up_before_all_have_met_ends_the_wait_of_all_with_its_reason(who, monkeypatch, caplog):
    has_joined, serve = threading.Event(), Listener.serve

    def noting(listener, secret, welcome, admit):
        serve(listener, secret, welcome, lambda *args: (admit(*args), has_joined.set()))

    monkeypatch.setattr(meeting, "TELL_S", HANG_S)
    monkeypatch.setattr(Listener, "serve", noting)
    address = free_address()
    with ThreadPoolExecutor(2) as pool, caplog.at_level(logging.WARNING):
        others = [pool.submit(join, node, 3, address) for node in range(3) if node != who]
        assert who == 0 or has_joined.wait(HANG_S)
        decline(Hello(node=who, nodes=3, terms={}), address, SECRET, "--lr is -1")
        said = [str(other.exception(HANG_S)) for other in others]
    assert all(text.endswith(f"node {who} gave up: --lr is -1") for text in said)
    assert not caplog.records, "one line on each side"


def test_a_node_that_gives_up_too_late_ends_no_training():
    address = free_address()
    with ThreadPoolExecutor(2) as pool:
        host = pool.submit(join, 0, 2, address)
        with join(1, 2, address) as one, host.result(HANG_S) as zero:
            for node in range(2):
                decline(Hello(node=node, nodes=2, terms={}), address, SECRET, "for a test")
            told = pool.submit(zero.share, "ready", b"0")
            assert one.share("ready", b"1") == told.result(HANG_S) == [b"0", b"1"]


def test_what_ends_the_wait_of_a_node_that_has_joined_is_its_own():
    address, tries = free_address(), []

    def stopping():
        tries.append(1)
        if len(tries) > 3:
            raise InterruptedError("stopped by a signal")

    def listens():
        with socket.socket() as probe:
            return probe.connect_ex(address) == 0

    with ThreadPoolExecutor(1) as pool:
        host = pool.submit(join, 0, 3, address, wait_s=2.0)
        comes(listens)
        with pytest.raises(InterruptedError, match="stopped by a signal"):
            join(1, 3, address, check=stopping)
        assert "nodes 1, 2 of 3 have not joined" in str(host.exception(HANG_S))
