"""The exchange of tiles between nodes: bytes, order, agreements, and every way in which it ends."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from asynctile.errors import NodeError
from asynctile.nodes import boxes, meeting, peer, tcp_exchange
from asynctile.nodes.boxes import Track
from asynctile.nodes.line import SocketLine
from asynctile.nodes.wire import MESSAGE_NBYTES, Said
from tests.laws import law
from tests.nodes.meetings import SECRET, TERMS, comes, free_address, join, met
from tests.settle import HANG_S

SIZES = (1, 100, 5_000, 300_000)


def flat(array):
    return memoryview(array).cast("B")


def under_way(move, node, index, array, track=Track.TEMPORARY):
    """Begin a send or a receive; return a future of its error or None."""
    future = Future()
    move(node, index, flat(array), future.set_result, track=track)
    return future


def crossing(exchanges, arrays, found, rng):
    """Send `arrays` of each of two nodes into `found` of the other, begun in any order; return the outcomes."""
    futures = []
    for node, exchange in enumerate(exchanges):
        other, count = 1 - node, len(arrays[node])
        exchange.begin({other: count}, {other: count})
        futures += [under_way(exchange.receive, other, i, found[node][i]) for i in rng.permutation(count)]
        futures += [under_way(exchange.send, other, i, arrays[node][i]) for i in rng.permutation(count)]
    return [outcome(future) for future in futures]


def outcome(future):
    return future.result(HANG_S)


def ended(*exchanges):
    """Wait until the exchanges have failed; return the words of each."""
    comes(lambda: all(exchange.failure is not None for exchange in exchanges))
    return [str(exchange.failure) for exchange in exchanges]


@pytest.mark.parametrize("channels", [1, 3])
def test_tiles_arrive_bit_for_bit_whatever_the_order_in_which_both_sides_are_ready(channels, monkeypatch):
    monkeypatch.setattr(boxes, "PIECE_NBYTES", 4096)
    rng = np.random.default_rng(1)
    values = [rng.bytes(size) for size in SIZES * 3]
    with met(2, channels=channels) as exchanges:
        for run in range(2):
            arrays = [[np.frombuffer(value, np.uint8).copy() for value in values] for _ in exchanges]
            found = [[np.zeros(len(value), np.uint8) for value in values] for _ in exchanges]
            assert set(crossing(exchanges, arrays, found, rng)) == {None}, run
            assert all(array.tobytes() == value for got in found for array, value in zip(got, values, strict=True))


@pytest.mark.parametrize("track", Track)
def test_a_tile_of_one_track_that_is_not_ready_holds_up_none_of_the_other(track):
    other = Track.TEMPORARY if track is Track.PERSISTENT else Track.PERSISTENT
    with met(2, channels=1) as (zero, one):
        for each in Track:
            zero.begin({1: 1}, {}, each)
            one.begin({}, {0: 1}, each)
        late, found = np.zeros(1 << 20), np.zeros(3)
        waiting = under_way(one.receive, 0, 0, late, track)
        received = under_way(one.receive, 0, 0, found, other)
        assert outcome(under_way(zero.send, 1, 0, np.ones(3), other)) is outcome(received) is None and found.all()
        assert not waiting.done()
        assert outcome(under_way(zero.send, 1, 0, np.ones(1 << 20), track)) is outcome(waiting) is None and late.all()


def test_four_nodes_exchange_with_each_other():
    with met(4) as exchanges:
        others = {node: [other for other in range(4) if other != node] for node in range(4)}
        found, futures = {}, []
        for node, exchange in enumerate(exchanges):
            exchange.begin(dict.fromkeys(others[node], 1), dict.fromkeys(others[node], 1))
            for other in others[node]:
                found[node, other] = np.zeros(1000, np.int32)
                futures += [under_way(exchange.send, other, 0, np.full(1000, 10 * node + other, np.int32)),
                            under_way(exchange.receive, other, 0, found[node, other])]  # fmt: skip
        assert [outcome(future) for future in futures] == [None] * len(futures)
        assert all((array == 10 * other + node).all() for (node, other), array in found.items())


def test_a_sender_waits_for_a_place_and_holds_nothing_back_from_other_nodes():
    """Nothing is buffered beyond what sockets hold: a large tile waits at its sender until its receiver has a place."""
    large, small = np.ones(64 << 20, np.uint8), np.ones(8, np.uint8)
    with met(3) as (zero, one, two):
        zero.begin({1: 1, 2: 1}, {})
        one.begin({}, {0: 1})
        two.begin({}, {0: 1})
        waiting = under_way(zero.send, 1, 0, large)
        there = under_way(two.receive, 0, 0, np.zeros_like(small))
        assert outcome(under_way(zero.send, 2, 0, small)) is outcome(there) is None
        assert not waiting.done()
        assert outcome(under_way(one.receive, 0, 0, np.zeros_like(large))) is outcome(waiting) is None


def test_nodes_share_words_in_the_order_of_nodes():
    with ThreadPoolExecutor(3) as pool, met(3) as exchanges:
        for topic in ("begin", "loss"):
            said = list(pool.map(lambda one, topic=topic: one.share(topic, f"{one.node} {topic}".encode()), exchanges))
            assert said == [[f"{node} {topic}".encode() for node in range(3)]] * 3


def test_a_node_alone_shares_with_itself():
    with met(1) as (alone,):
        assert alone.share("begin", b"x") == [b"x"]


def test_nodes_that_share_other_topics_have_gone_apart():
    with ThreadPoolExecutor(2) as pool, met(2) as (zero, one):
        told = [pool.submit(zero.share, "step 3", b""), pool.submit(one.share, "step 4", b"")]
        for future in told:
            with pytest.raises(NodeError, match=r"is at step \d, and node \d is at step \d"):
                future.result(HANG_S)


def test_a_node_that_is_far_ahead_ends_the_exchange():
    count = tcp_exchange.AHEAD + 1
    with ThreadPoolExecutor(count) as pool, met(2) as (zero, one):
        told = [pool.submit(zero.share, str(number), b"") for number in range(count)]
        assert all(f"is {count} agreements ahead" in str(future.exception(HANG_S)) for future in told)
        ended(one)


def test_a_long_message_is_refused_before_it_is_sent():
    with met(2) as (zero, _), pytest.raises(ValueError, match="expected at most"):
        zero.share("x", bytes(MESSAGE_NBYTES + 1))


def test_an_abort_reaches_every_wait_of_every_node_with_its_words():
    with ThreadPoolExecutor(3) as pool, met(3) as exchanges:
        zero, one, two = exchanges
        for exchange in exchanges:
            others = {node: 1 for node in range(3) if node != exchange.node}
            exchange.begin(others, others)
        futures = [under_way(one.receive, 0, 0, np.zeros(8)), under_way(two.send, 1, 0, np.zeros(32 << 20, np.uint8))]
        sharing = pool.submit(two.share, "loss", b"")
        zero.abort("the disk is full")
        words = "gave up: the disk is full"
        assert words in str(sharing.exception(HANG_S))
        assert all(words in str(outcome(future)) for future in futures)
        for text in ended(one, two):
            assert text.startswith("node 0 (127.0.0.1:") and text.endswith(words)
        assert words in str(outcome(under_way(one.send, 2, 0, np.zeros(1))))


def test_another_size_than_expected_ends_the_exchange_on_both_sides():
    with met(2) as (zero, one):
        zero.begin({1: 1}, {})
        one.begin({}, {0: 1})
        sent = under_way(zero.send, 1, 0, np.zeros(5))
        assert "transfer 0 has 40 bytes there and 8 here" in str(outcome(under_way(one.receive, 0, 0, np.zeros(1))))
        outcome(sent)
        assert "start all nodes with the same options" in ended(zero)[0]


def test_a_node_that_left_in_order_is_named_to_whom_waits_for_it():
    with ThreadPoolExecutor(1) as pool, met(3) as (zero, one, two):
        one.begin({}, {0: 1})
        waiting, sharing = under_way(one.receive, 0, 0, np.zeros(1)), pool.submit(two.share, "loss", b"")
        zero.close()
        assert str(outcome(waiting)).endswith("has left")
        with pytest.raises(NodeError, match="has left, and this node waits for its word on loss"):
            one.share("loss", b"")
        assert "has left" in str(sharing.exception(HANG_S))
        two.begin({1: 1}, {})
        one.begin({}, {2: 1})
        found = np.zeros(1)
        assert outcome(under_way(two.send, 1, 0, np.ones(1))) is outcome(under_way(one.receive, 2, 0, found)) is None
        assert found[0] == 1


def test_a_silent_node_is_noticed_within_the_patience_and_named(monkeypatch):
    monkeypatch.setattr(tcp_exchange, "BEATS", 0.001)  # the next beat would come in minutes
    with met(2, patience_s=0.3) as (zero, one):
        zero.begin({}, {1: 1})
        waiting = under_way(zero.receive, 1, 0, np.zeros(1))
        assert "has been silent for 0.3 s" in str(outcome(waiting))
        ended(one)


@pytest.fixture
def beats(monkeypatch):
    """The beats that were heard; each node sends one every few milliseconds."""
    heard, read_message = [], peer.read_message

    def reading(connection):
        message = read_message(connection)
        if message.kind is Said.BEAT:
            heard.append(message)
        return message

    monkeypatch.setattr(peer, "read_message", reading)
    monkeypatch.setattr(tcp_exchange, "BEATS", tcp_exchange.PATIENCE_S / 0.005)
    return heard


def test_nodes_that_wait_hear_beats(beats):
    with met(2) as (zero, one):
        zero.begin({}, {1: 1})
        one.begin({0: 1}, {})
        waiting = under_way(zero.receive, 1, 0, np.zeros(1))
        comes(lambda: len(beats) > 10)
        assert outcome(under_way(one.send, 0, 0, np.ones(1))) is outcome(waiting) is None


def test_beats_tell_when_more_work_of_a_node_is_done_and_only_then(beats):
    with met(2) as (zero, one):
        told, done = [], 0
        zero.moved = lambda: told.append(None)
        one.progress = lambda: done
        for _ in range(3):
            count, done = len(told), done + 1
            comes(lambda count=count: len(told) > count)
        count, heard = len(told), len(beats)
        comes(lambda: len(beats) > heard + 10)
        assert len(told) == count


OTHER = """
import sys, numpy as np
from asynctile.nodes.tcp_exchange import TcpExchange
exchange = TcpExchange.meet(1, 3, ("127.0.0.1", int(sys.argv[1])), {secret!r}, {terms!r}, patience_s=float(sys.argv[2]))
exchange.begin({{0: 1}}, {{}})
print("met", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("number", "words", "patience_s"), [
    (signal.SIGKILL, "was lost: ", HANG_S), law(signal.SIGSTOP, "has been silent for 3 s", 3.0),
])  # fmt: skip
def test_a_node_that_is_killed_or_stopped_is_named_by_all_others(number, words, patience_s):
    address = free_address()
    command = [sys.executable, "-c", OTHER.format(secret=SECRET, terms=TERMS), str(address[1]), str(patience_s)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node,
        ThreadPoolExecutor(1) as pool,
    ):
        host = pool.submit(join, 0, 3, address, patience_s=patience_s)
        try:
            with join(2, 3, address, patience_s=patience_s) as two, host.result(HANG_S) as zero:
                assert node.stdout.readline() == b"met\n"
                zero.begin({}, {1: 1})
                waiting = under_way(zero.receive, 1, 0, np.zeros(1))
                os.kill(node.pid, number)
                assert words in str(outcome(waiting))
                assert all("node 1 (127.0.0.1:" in text and words in text for text in ended(zero, two))
        finally:
            node.kill()


def test_a_cut_connection_of_tiles_ends_the_exchange(monkeypatch):
    monkeypatch.setattr(peer, "FAREWELL_S", 0.05)
    made, reach = [], meeting.reach
    monkeypatch.setattr(meeting, "reach", lambda *args: made.append(reach(*args)) or made[-1])
    with met(2, channels=2) as exchanges:
        exchanges[0].begin({1: 1}, {})
        exchanges[1].begin({}, {0: 1})
        waiting = under_way(exchanges[1].receive, 0, 0, np.zeros(1))
        made[1].shutdown(socket.SHUT_RDWR)  # the first is the control connection
        assert "was lost: it closed the connection" in str(outcome(waiting))
        ended(*exchanges)


def test_a_line_is_closed_only_once_its_threads_have_left_and_else_named(monkeypatch, caplog):
    gate, held, closed, close = threading.Event(), [], [], SocketLine.close

    def held_up(line, view):
        held.append(line)
        gate.wait()
        raise ConnectionAbortedError

    monkeypatch.setattr(SocketLine, "receive", held_up)
    monkeypatch.setattr(SocketLine, "close", lambda line: (closed.append(line), close(line)))
    with met(2, channels=1) as (zero, one):
        monkeypatch.setattr(peer, "LAST_S", 0.05)
        zero.begin({1: 1}, {})
        one.begin({}, {0: 1})
        moved = [under_way(zero.send, 1, 0, np.ones(1)), under_way(one.receive, 0, 0, np.ones(1))]
        comes(lambda: held)
        one.abort("for a test")
        comes(lambda: len([thread for thread in threading.enumerate() if thread.name.startswith("asynctile-node-0")]) == 1)
        with caplog.at_level(logging.WARNING):
            one.close()
        assert len(closed) == 1 and held[0] not in closed
        (line,) = (record.getMessage() for record in caplog.records)
        assert "asynctile-node-0-receive does not end" in line and "left behind, with its line to node 0 (127.0.0.1:" in line
        monkeypatch.setattr(peer, "LAST_S", HANG_S)
        gate.set()
    assert held[0] in closed and all(future.done() for future in moved)


def test_no_thread_outlives_an_exchange():
    before = set(threading.enumerate())
    with met(3) as (zero, *_):
        assert len(set(threading.enumerate()) - before) > 20
        zero.abort("for a test")
    assert not {thread for thread in threading.enumerate() if thread.name.startswith("asynctile-")} - before


def test_closing_twice_does_no_harm():
    with met(2) as (zero, _):
        zero.close()
        zero.close()
