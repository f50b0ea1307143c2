"""Bytes over a socket: what the other side has done, whatever is left to read."""

import socket

from asynctile.nodes.wire import closed


def test_a_connection_is_closed_once_the_other_side_has_left_though_its_bytes_are_unread():
    (one, other), (two, another) = socket.socketpair(), socket.socketpair()
    with one, two, another:
        other.sendall(b"a beat")
        another.sendall(b"a beat")
        assert closed([one, two]) == []
        other.close()
        assert closed([one, two], 1) == [one]
