"""How fast do tiles go from one process to another, and what does a training over two processes cost?

    python bench/bench_exchange.py [--rounds 5] [--steps 20] [--batch 12] [--write]

Tiles: 1 and 100 MB go over the loopback from one process into the memory of another one, beside PyTorch's gloo (`send`, `recv`)
and a copy within one process (`numpy.copyto`). These tiles go over two connections. Both ends share the machine, and the
kernel copies each byte twice.

Training: the model of `make train`, float32 on `cpu`, two replicas, in one process with all cores, and in two with half of them
each. Both do the same arithmetic with the same bits, so the quotient is what the exchange and the waits cost. Target: two
processes make at least 0.8 of the steps of one.

Digests: of losses and weights after three steps with four replicas of the same model, on devices under a cap of half of the
states, for every way to share the replicas that is in the table.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
from common import Table, arguments, batch, publish, target
from small_model import LENGTH, SHAPE

from asynctile import Engine
from asynctile.layers import GPT2, AdamW, Trainer
from asynctile.nodes import TcpExchange

SIZES = (1_000_000, 100_000_000)
SECRET = b"only for this benchmark"
LEAST = 0.8
#: Steps before the measured ones: programs are recorded, scheduled and made ready to be played.
WARM = 3
#: Nodes, and emulated devices of each, that share four replicas.
LAYOUTS = ((1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (1, 4))
REPLICAS = 4
Address = tuple[str, int]
R = TypeVar("R")


class Steps(NamedTuple):
    """Steps of one node: seconds of each, bytes of a step to the other node, and the loss of the last one."""

    seconds: list[float]
    sent_bytes: int
    loss: float


def moved(node: int, address: Address, nbytes: int, rounds: int) -> list[float]:
    """Return the seconds of each transfer from node 0 to node 1, as this node sees them."""
    array, found = np.ones(nbytes, np.uint8), []
    with TcpExchange.meet(node, 2, address, SECRET, {}) as exchange:
        move = exchange.receive if node else exchange.send
        for _ in range(rounds + 1):
            counts: dict[int, int] = {1 - node: 1}
            exchange.begin(*(({}, counts) if node else (counts, {})))
            over = threading.Event()
            exchange.share("ready", b"")
            start = time.perf_counter()
            move(1 - node, 0, array.data, lambda error, over=over: over.set())
            over.wait()
            found.append(time.perf_counter() - start)
    return found[1:]


def moved_by_gloo(node: int, address: Address, nbytes: int, rounds: int) -> list[float]:
    """Return the seconds of each transfer from node 0 to node 1 by PyTorch's gloo, as this node sees them."""
    from torch_step import torch

    distributed = torch.distributed
    host, port = address
    distributed.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=node, world_size=2)
    tensor, found = torch.ones(nbytes, dtype=torch.uint8), []
    for _ in range(rounds + 1):
        distributed.barrier()
        start = time.perf_counter()
        if node:
            distributed.recv(tensor, 0)
        else:
            distributed.send(tensor, 1)
        found.append(time.perf_counter() - start)
    distributed.destroy_process_group()
    return found[1:]


def copied(nbytes: int, rounds: int) -> list[float]:
    """Return the seconds of copies within this process."""
    source, to, found = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8), []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        np.copyto(to, source)
        found.append(time.perf_counter() - start)
    return found[1:]


def trained(node: int, address: Address, nodes: int, steps: int, size: int) -> Steps:
    """Train on this node's part of the cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[node::nodes])
    exchange = None if nodes == 1 else TcpExchange.meet(node, nodes, address, SECRET, {})

    async def run() -> Steps:
        async with Engine("cpu", exchange=exchange) as engine:
            trainer = Trainer(await GPT2.create(engine, SHAPE, seed=1), AdamW(lr=1e-4), replicas=2)
            inputs = batch(SHAPE, size, LENGTH)
            reports = [await trainer.step(*inputs) for _ in range(WARM + steps)][WARM:]
            return Steps([report.step_s for report in reports], reports[-1].sent_bytes, reports[-1].loss)

    try:
        return asyncio.run(run())
    finally:
        if exchange is not None:
            exchange.close()


def digest(node: int, address: Address, nodes: int, devices: int) -> str:
    """Return a digest of what this node has after three steps."""
    exchange = None if nodes == 1 else TcpExchange.meet(node, nodes, address, SECRET, {})

    async def run() -> str:
        named = "emulated" if devices == 1 else f"emulated*{devices}"
        async with Engine(named, device_memory=SHAPE.states_nbytes // 2, exchange=exchange) as engine:
            trainer = Trainer(await GPT2.create(engine, SHAPE, seed=1), AdamW(lr=1e-3), replicas=REPLICAS)
            inputs = batch(SHAPE, 2 * REPLICAS, LENGTH)
            losses = [(await trainer.step(*inputs)).loss for _ in range(3)]
            found = hashlib.sha256(repr(losses).encode())
            for name, tensor in (await trainer.model.state_dict()).items():
                found.update(name.encode() + tensor.tobytes())
            return found.hexdigest()[:16]

    try:
        return asyncio.run(run())
    finally:
        if exchange is not None:
            exchange.close()


def digests() -> Table:
    table = Table(f"digests with {REPLICAS} replicas", ("nodes", "devices of each", "digest", "equal everywhere"))
    for nodes, devices in LAYOUTS:
        found = on_nodes(nodes, digest, nodes, devices)
        first = table.rows[0][2] if table.rows else found[0]
        table.rows.append((nodes, devices, found[0], {*found} == {first}))
    return table


def on_nodes(nodes: int, work: Callable[..., R], *more: Any) -> list[R]:
    """Return what `work(node, address, *more)` returns on each node, each a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with ProcessPoolExecutor(nodes, multiprocessing.get_context("spawn")) as pool:
        return [one.result() for one in [pool.submit(work, node, address, *more) for node in range(nodes)]]


def transfers(rounds: int) -> Table:
    columns = ("bytes", "exchange", "gloo", "copy within one process", "exchange over gloo", "exchange over a copy")
    table = Table("GB/s from one process to another", columns)
    for nbytes in SIZES:
        sides = [on_nodes(2, work, nbytes, rounds)[1] for work in (moved, moved_by_gloo)]
        ours, gloo, copy = (nbytes / statistics.median(found) / 1e9 for found in (*sides, copied(nbytes, rounds)))
        table.rows.append((nbytes, ours, gloo, copy, ours / gloo, ours / copy))
    return table


def trainings(rounds: int, steps: int, size: int) -> Table:
    table = Table("a step in ms", ("processes", "ms", "bytes sent by node 0", "steps of one process", "target"))
    found: dict[int, list[Steps]] = {1: [], 2: []}
    for _ in range(rounds):
        for nodes, those in found.items():
            those.append(on_nodes(nodes, trained, nodes, steps, size)[0])
    assert len({one.loss for those in found.values() for one in those}) == 1, "the bits differ"
    ms = {nodes: 1e3 * statistics.median(one for those in found[nodes] for one in those.seconds) for nodes in found}
    table.rows.append((1, ms[1], found[1][0].sent_bytes, 1.0, None))
    table.rows.append((2, ms[2], found[2][0].sent_bytes, ms[1] / ms[2], target(ms[1] / ms[2], LEAST)))
    return table


def main() -> None:
    options = arguments(__doc__, rounds=5, steps=20, batch=12)
    tables = [transfers(10 * options.rounds), trainings(options.rounds, options.steps, options.batch), digests()]
    configuration = {
        "model": f"GPT-2, {SHAPE.summary}, T {LENGTH}, B {options.batch}, float32, on cpu",
        "repeats": f"median of {10 * options.rounds} transfers; of {options.rounds} rounds of {options.steps} steps, in turn",
    }
    publish("bench_exchange", __doc__, configuration, tables, write=options.write)


if __name__ == "__main__":
    main()
