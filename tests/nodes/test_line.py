"""A line over a socket, whose two threads share one connection and no time limit."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from asynctile.nodes.boxes import Track
from asynctile.nodes.line import SocketLine
from asynctile.nodes.wire import PieceHeader, send_piece
from tests.nodes.meetings import comes
from tests.settle import HANG_S


@pytest.fixture
def ends(request):
    """A line, of the patience given or more than any test needs, and the plain connection at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    with here, there:
        yield SocketLine(here, Track.TEMPORARY, getattr(request, "param", HANG_S)), there


def test_a_thread_that_waits_inside_a_piece_sets_no_limit_to_the_one_that_sends(ends):
    line, there = ends
    found = bytearray(2)
    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(line.receive, memoryview(found))
        there.sendall(b"1")
        comes(lambda: found[0])
        # A socket has one timeout for both ways. With one, a send into a full buffer fails, at once or in time.
        assert line.connection.gettimeout() is None
        there.sendall(b"2")
        receiving.result(HANG_S)
    assert found == b"12"


@pytest.mark.parametrize("ends", [0.05], indirect=True)
def test_the_rest_of_a_piece_that_does_not_come_is_an_error_in_time(ends):
    line, there = ends
    there.sendall(b"1")
    with pytest.raises(TimeoutError):
        line.receive(memoryview(bytearray(2)))


@pytest.mark.parametrize("ends", [0.05], indirect=True)
def test_the_next_piece_may_take_longer_than_the_rest_of_one(ends):
    line, there = ends
    header = PieceHeader(0, 1, 0, 1)
    send_piece(there, header, memoryview(b"1"))
    assert line.header() == header
    line.receive(memoryview(bytearray(1)))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(line.header)
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        send_piece(there, header, memoryview(b"1"))
        assert waiting.result(HANG_S) == header
