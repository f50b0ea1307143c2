"""Meetings of nodes in this process, each in a thread of its own, at a free port of the loopback."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from asynctile.nodes.tcp_exchange import TcpExchange
from tests.settle import HANG_S

SECRET = b"a secret of the tests"
TERMS = {"version": "1", "replicas": "4"}


def free_address():
    """Return an address of the loopback at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()


def join(node, nodes, address, *, secret=SECRET, terms=TERMS, **options):
    """Meet the others as one node."""
    return TcpExchange.meet(node, nodes, address, secret, terms, **{"wait_s": HANG_S, **options})


def comes(condition):
    """Wait until `condition()` is true, which other threads bring about."""
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@contextmanager
def met(nodes, join=join, **options):
    """Give the exchanges of all nodes, by node. join: meets the others as one node."""
    address = free_address()
    with ThreadPoolExecutor(nodes) as pool, ExitStack() as opened:
        meetings = [pool.submit(join, node, nodes, address, **options) for node in range(nodes)]
        exchanges = [meeting.result(HANG_S) for meeting in meetings]
        opened.callback(lambda: list(pool.map(lambda exchange: exchange.close(), exchanges)))
        yield exchanges
