"""The handshake of two nodes: who is accepted, who is refused, and in which words on both sides."""

import socket
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from asynctile.errors import NodeError
from asynctile.nodes import handshake
from asynctile.nodes.handshake import MAGIC, Hello, answer_call, call
from asynctile.nodes.wire import Deadline
from tests.nodes.meetings import SECRET, TERMS
from tests.settle import HANG_S

HELLO = Hello(node=1, nodes=2, terms=TERMS)


@pytest.fixture
def pair():
    """Two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with one, other:
        yield one, other


def both(pair, welcome=lambda hello: {"fine": True}, secret=SECRET, own=SECRET, hello=HELLO):
    """Return the outcomes of both sides of a handshake: results or errors."""
    with ThreadPoolExecutor(2) as pool:
        calling = pool.submit(call, pair[0], hello, own, Deadline(HANG_S))
        answering = pool.submit(answer_call, pair[1], secret, welcome)
        return [done.exception(HANG_S) or done.result() for done in (calling, answering)]


def test_two_nodes_that_know_the_secret_meet(pair):
    answer, hello = both(pair)
    assert answer == {"fine": True} and hello == HELLO


def test_another_secret_is_refused_in_one_line_on_both_sides(pair):
    caller, called = both(pair, own=b"some other secret")
    assert "could not join at 127.0.0.1:" in str(caller) and "the secrets differ" in str(caller)
    assert str(called) == "the secrets differ; give all nodes the same secret"


def test_a_refusal_reaches_the_caller_in_its_words(pair):
    def refuse(hello):
        raise NodeError("no room for node 1")

    caller, called = both(pair, refuse)
    assert isinstance(caller, NodeError) and "was refused at 127.0.0.1:" in str(caller)
    assert str(caller).endswith(str(called)) and str(called) == "no room for node 1"


def test_the_secret_is_never_sent(pair):
    sent = []

    class Recorded:
        def __init__(self, connection):
            self.connection = connection

        def sendall(self, content):
            sent.append(bytes(content))
            self.connection.sendall(content)

        def __getattr__(self, name):
            return getattr(self.connection, name)

    both([Recorded(one) for one in pair])
    assert len(sent) == 4 and not any(SECRET in content for content in sent)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0", b"asynctile nodes", MAGIC + b"short"])
def test_a_caller_that_speaks_something_else_is_refused(pair, garbage):
    pair[0].sendall(garbage)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(NodeError, match=r"not asynctile|closed the connection"):
        answer_call(pair[1], SECRET, pytest.fail)


@pytest.mark.parametrize("said", [b"", MAGIC[:5], MAGIC + bytes(32) + b"\0\0\0\5{"])
def test_a_caller_that_stops_in_the_middle_is_refused_in_time(pair, said, monkeypatch):
    monkeypatch.setattr(handshake, "PATIENCE_S", 0.05)
    pair[0].sendall(said)
    with pytest.raises(NodeError, match="it did not answer in time"):
        answer_call(pair[1], SECRET, pytest.fail)


def test_a_caller_that_drips_bytes_is_refused_in_time(pair, monkeypatch):
    """The deadline counts for the whole handshake and not for each byte."""
    monkeypatch.setattr(handshake, "PATIENCE_S", 0.3)
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(answer_call, pair[1], SECRET, pytest.fail)
        for byte in MAGIC + bytes(1000):
            pair[0].sendall(bytes([byte]))
            if wait([answering], 0.02).done:
                break
        assert "did not answer in time" in str(answering.exception(0))


@pytest.mark.parametrize("changes", [{"node": "1"}, {"node": True}, {"nodes": -1}, {"terms": []}, {"terms": {"a": 1}}])
def test_a_hello_of_other_types_is_refused(pair, changes):
    caller, called = both(pair, pytest.fail, hello=Hello(**{"node": 1, "nodes": 2, "terms": TERMS, **changes}))
    assert "introduced itself as" in str(called) and str(called) in str(caller)


def test_a_long_document_is_not_read(pair):
    pair[0].sendall(MAGIC + bytes(32) + b"\xff\xff\xff\xff")
    with pytest.raises(NodeError, match="a document of 4294967295 bytes was announced"):
        answer_call(pair[1], SECRET, pytest.fail)
