"""A client that asks a service at times set beforehand, in a process of its own (bench_service.py).

    python bench/open_loop.py PORT RATE SEED

The client sends RATE requests a second, as a Poisson process, over connections that take turns. It never waits for an answer
before it asks again, so a service that stalls still gets the requests that its users would have sent meanwhile. A request is a
line of JSON, and so is an answer, which says when it was `answered`. When its standard input ends, the client prints one line
of JSON with a triple for each request: when it was due, when it was in the socket, and when it was answered. The times are in
seconds of the machine's clock, which time.perf_counter shows in every process. It imports only the standard library, because it
shares the cores with the service that is measured.
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
#: Seconds that answers may still take after the last request.
PATIENCE_S = 60.0


def connect(port: int) -> list[socket.socket]:
    found = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    for one in found:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def ask(sockets: list[socket.socket], rate: float, seed: int, stop: threading.Event) -> list[tuple[float, float]]:
    """Send requests until `stop`. Returns for each when it was due, and when it was in the socket."""
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
    """Read answers into `answered` until every connection is closed."""
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
    for one in sockets:  # the service reads each to its end, answers, and closes it
        one.shutdown(socket.SHUT_WR)
    hearing.join(PATIENCE_S)
    if len(answered) != len(asked):
        raise SystemExit(f"{len(asked) - len(answered)} of {len(asked)} requests were never answered")
    print(json.dumps([(*times, answered[index]) for index, times in enumerate(asked)]))


if __name__ == "__main__":
    main()
