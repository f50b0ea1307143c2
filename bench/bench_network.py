"""How much of a slow network do the steps of two nodes hide?

    python bench/bench_network.py [--rounds 5] [--steps 10] [--batch 4] [--write]

Two processes with a core each train one model with two replicas, float32 on `cpu`. Each piece of a tile waits until a wire of
a given rate would have carried it and those before it. Without a limit, a step takes as long as it computes, with little more.
At the limited rates, the network alone takes 0.5, 1 and 2 times as long as that. The rates take turns, each with --steps steps
a round.

A step that hid all it could would take the longer of both times, one that hid nothing their sum. `hidden` is the part of the
shorter one that it hid. Beside it stands the step by the virtual clock: of both nodes, which wait for each other, and of node 0
alone, which never waits, as `asynctile plan --nodes 2` makes it. Its rates are those that `asynctile info --measure` finds on
each core while both measure, before and behind the rounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bench_exchange import SECRET, Address, on_nodes
from common import Table, arguments, batch, publish

from asynctile import Engine
from asynctile.cli.measured import measured
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from asynctile.layers.machine import Machine, Work
from asynctile.layers.plan import traffic_of
from asynctile.layers.planned_step import planned_steps
from asynctile.measure.hardware import hardware
from asynctile.nodes import TcpExchange
from asynctile.nodes.line import SocketLine
from asynctile.nodes.listener import Listener
from asynctile.nodes.wire import PieceHeader

LENGTH = 256
CONFIG = GPT2Config(n_layer=6, n_head=4, n_embd=256, block_size=LENGTH, vocab_size=1024)
NODES = 2
#: Seconds of the network over those of computing; None: no limit.
SHARES = (None, 0.5, 1.0, 2.0)
#: Steps before the measured ones, and after each change of the rate.
WARM, SETTLE = 3, 1


class Wire:
    """The way out of a node, which all its lines share. per_s: bytes a second; None: no limit."""

    def __init__(self) -> None:
        self.per_s: float | None = None
        self._free_s = 0.0
        self._turn = threading.Lock()

    def carry(self, nbytes: int) -> None:
        """Wait until the wire has carried so many bytes, behind those of earlier calls."""
        with self._turn:
            if self.per_s is None:
                return
            end_s = self._free_s = max(time.perf_counter(), self._free_s) + nbytes / self.per_s
        time.sleep(max(0.0, end_s - time.perf_counter()))


class PacedLine(SocketLine):
    """A line whose pieces leave once `wire` has carried them."""

    def __init__(self, line: SocketLine, wire: Wire, patience_s: float) -> None:
        super().__init__(line.connection, line.track, patience_s)
        self._wire = wire

    def send(self, piece: PieceHeader, view: memoryview) -> None:
        self._wire.carry(len(view))
        super().send(piece, view)


class PacedExchange(TcpExchange):
    """An exchange whose tiles keep to a rate, once `pace` has set it."""

    def __init__(
        self, node: int, controls: Mapping[int, socket.socket], lines: Mapping[int, Sequence[SocketLine]],
        listener: Listener, patience_s: float,
    ) -> None:  # fmt: skip
        self._wire = Wire()
        paced = {other: [PacedLine(line, self._wire, patience_s) for line in own] for other, own in lines.items()}
        super().__init__(node, controls, paced, listener, patience_s)

    def pace(self, per_s: float | None) -> None:
        """Send at most so many bytes a second; None: no limit."""
        self._wire.per_s = per_s

    def held(self, nbytes: int) -> float:
        """Exchange so many bytes with the other node, both ways at once; return the bytes a second of each way."""
        views, over = [np.zeros(nbytes, np.uint8).data for _ in range(2)], threading.Semaphore(0)
        other = 1 - self.node
        self.begin({other: 1}, {other: 1})
        self.share("ready", b"")
        began_s = time.perf_counter()
        for move, view in zip((self.receive, self.send), views, strict=True):
            move(other, 0, view, lambda error: over.release())
        for _ in views:
            over.acquire()
        return nbytes / (time.perf_counter() - began_s)


@dataclass
class Found:
    """What one node found. nbytes: the most that a node sends in a step. rates: of the network in bytes a second, by share.

    held: the rates that transfers had. seconds: of steps, by share. machines: the files of the core, one for each measurement.
    """

    nbytes: int
    rates: dict[float | None, float | None]
    held: dict[float | None, float] = field(default_factory=dict)
    seconds: dict[float | None, list[float]] = field(default_factory=lambda: {share: [] for share in SHARES})
    machines: list[str] = field(default_factory=list)
    loss: float = 0.0


def trained(node: int, address: Address, rounds: int, steps: int, size: int) -> Found:
    """Train as one node on a core of its own, at each rate in turn."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[node]})
    with PacedExchange.meet(node, NODES, address, SECRET, {}) as exchange:
        machines = [_machine(exchange)]
        found = asyncio.run(_stepped(exchange, rounds, steps, size))
        found.machines = [*machines, _machine(exchange)]
        return found


def _machine(exchange: PacedExchange) -> str:
    """Measure this node's core while the other node measures its own; return the file's text."""
    exchange.share("measure", b"")
    return measured()


async def _stepped(exchange: PacedExchange, rounds: int, steps: int, size: int) -> Found:
    async with Engine("cpu", exchange=exchange) as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, seed=1), AdamW(lr=1e-4), replicas=NODES)
        inputs = batch(CONFIG, size, LENGTH)

        async def side(count: int) -> list[float]:
            return [(await trainer.step(*inputs)).step_s for _ in range(count)]

        await side(WARM)
        own = [statistics.median(await side(steps)), (await trainer.step(*inputs)).sent_bytes]
        said = [json.loads(one) for one in await asyncio.to_thread(exchange.share, "a step", json.dumps(own).encode())]
        compute_s, nbytes = (max(values) for values in zip(*said, strict=True))
        found = Found(nbytes, {share: None if share is None else nbytes / (share * compute_s) for share in SHARES})
        for turn in range(rounds):
            for share in SHARES if turn % 2 == 0 else SHARES[::-1]:
                exchange.pace(found.rates[share])
                if turn == 0:
                    found.held[share] = await asyncio.to_thread(exchange.held, nbytes)
                await side(SETTLE)
                found.seconds[share] += await side(steps)
        exchange.pace(None)
        found.loss = (await trainer.step(*inputs)).loss
        return found


class Clocked(NamedTuple):
    """Seconds of a step by the virtual clock: of both nodes, and of node 0 if it never waited."""

    both: float
    alone: float


def clocked(machine: str, per_s: float, size: int) -> Clocked:
    """Run the virtual clock. machine: the file of a core. per_s: bytes a second of the network, each way."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "core.toml"
        path.write_text(machine)
        here = hardware(str(path))
    nodes = Machine(device="cpu", own_cores=1, measured=here.rates("fp32"), verbs=here.verbs, nodes=NODES, sent_per_s=per_s)
    parts = planned_steps(CONFIG, Work(batch_size=size, seq_len=LENGTH, replicas=NODES), nodes, range(NODES))
    costs, schedules = nodes.costs(parts[0].parameters.tiling.tile), [traffic_of(part, nodes).schedule for part in parts]
    return Clocked(costs.timelines(schedules)[0].seconds, costs.timeline(schedules[0]).seconds)


def rows(found: Found, clock: Mapping[float | None, Clocked]) -> Iterator[Sequence[object]]:
    """Yield a row for each rate."""
    compute_s = statistics.median(found.seconds[None])
    for share in SHARES:
        per_s, step_s = found.rates[share], statistics.median(found.seconds[share])
        network_s = found.nbytes / (per_s or found.held[share])
        longer_s, sum_s = max(compute_s, network_s), compute_s + network_s
        hidden = None if share is None else (sum_s - step_s) / min(compute_s, network_s)
        bounds = (None, None) if share is None else (1e3 * longer_s, 1e3 * sum_s)
        wanted = ("no limit", None) if per_s is None else (share, per_s / 1e6)
        yield (*wanted, found.held[share] / 1e6, 1e3 * network_s, 1e3 * step_s, *bounds, hidden, 1e3 * clock[share].both,
               step_s / clock[share].both, 1e3 * clock[share].alone)


def main() -> None:
    options = arguments(__doc__, rounds=5, steps=10, batch=4)
    nodes = on_nodes(NODES, trained, options.rounds, options.steps, options.batch)
    found = nodes[0]
    assert len({node.loss for node in nodes}) == 1, "the nodes have other bits"
    machines = [machine for node in nodes for machine in node.machines]
    clock = {}
    for share in SHARES:
        runs = [clocked(machine, found.rates[share] or found.held[share], options.batch) for machine in machines]
        clock[share] = Clocked(*map(statistics.median, zip(*runs, strict=True)))
    columns = ("network over compute", "MB/s each way", "MB/s held", "network ms", "step ms", "longer of both ms", "sum ms",
               "hidden", "by the clock ms", "step over the clock", "node 0 alone by the clock ms")
    configuration = {
        "model": f"GPT-2, {CONFIG.summary}, T {LENGTH}, B {options.batch}, float32, on cpu, {NODES} nodes of one core each",
        "bytes": f"{found.nbytes:,} sent by a node in a step, and as many received",
        "repeats": f"median of {options.rounds} rounds of {options.steps} steps, in turn",
        "machine of each core": json.dumps([text.splitlines() for text in machines]),
    }
    publish("bench_network", __doc__, configuration, [Table("a step of two nodes", columns, list(rows(found, clock)))],
            write=options.write)


if __name__ == "__main__":
    main()
