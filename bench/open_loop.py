"""A client that asks a service at times set beforehand, in a process of its own (bench_service.py).

    python bench/open_loop.py PORT RATE SEED

RATE requests a second, after a Poisson process, over connections that take turns; it never waits for an answer before it asks
again, so a service that stalls meets the requests that its users would have sent meanwhile. A request is a line of JSON, and so
is an answer, which says when it was `answered`. Ends with its standard input and prints, in one line of JSON, a triple for each
request: when it was due, when it stood in the socket, and when it was answered, in seconds of the clock of the machine, which
time.perf_counter shows in every process. Imports nothing but the standard library: it shares the cores with what is measured.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import sys
import threading
import time
from itertools import count

CONNECTIONS = 16
#: How long answers may still come after the last request, in seconds.
PATIENCE_S = 60.0


def connect(port: int) -> list[socket.socket]:
    found = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    for one in found:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def ask(sockets: list[socket.socket], rate: float, seed: int, stop: threading.Event) -> list[tuple[float, float]]:
    """When each request was due, and when it stood in the socket."""
    chance = random.Random(seed)
    values = [chance.randrange(100) for _ in range(32)]
    asked: list[tuple[float, float]] = []
    due = time.perf_counter()
    for index in count():
        due += chance.expovariate(rate)
        if stop.wait(max(0.0, due - time.perf_counter())):
            return asked
        line = json.dumps({"index": index, "values": values}).encode() + b"\n"
        sockets[index % len(sockets)].sendall(line)
        asked.append((due, time.perf_counter()))
    raise AssertionError("requests never end by themselves")


def hear(sockets: list[socket.socket], answered: dict[int, float]) -> None:
    """Take answers until every connection is closed. answered: is filled."""
    text = dict.fromkeys(sockets, b"")
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                more = key.fileobj.recv(1 << 16)
                if not more:
                    selector.unregister(key.fileobj)
                *lines, text[key.fileobj] = (text[key.fileobj] + more).split(b"\n")
                for line in lines:
                    answer = json.loads(line)
                    answered[answer["index"]] = answer["answered"]


def main() -> None:
    port, rate, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    sockets, stop, answered = connect(port), threading.Event(), {}
    hearing = threading.Thread(target=hear, args=(sockets, answered))
    hearing.start()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    asked = ask(sockets, rate, seed, stop)
    for one in sockets:  # the service reads to the end of each, answers, and closes
        one.shutdown(socket.SHUT_WR)
    hearing.join(PATIENCE_S)
    if len(answered) != len(asked):
        raise SystemExit(f"{len(asked) - len(answered)} of {len(asked)} requests were never answered")
    print(json.dumps([(*times, answered[index]) for index, times in enumerate(asked)]))


if __name__ == "__main__":
    main()
