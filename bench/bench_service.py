"""How much later does a service answer while a model trains in its process?

    python bench/bench_service.py [--rounds 2] [--idle 5] [--seconds 10] [--rate 200] [--layers 8] [--width 256] [--write]

A service answers --rate requests a second on its own event loop, asyncio's or uvloop's: it parses a line of JSON, awaits 1 ms
in place of a database, and writes a line of JSON. It runs alone for --idle seconds. Then its process opens an engine, with no
kernel compiled before, makes a model, and trains it with all cores for --seconds after the first steps. For comparison the same
GPT-2 trains in PyTorch, with each step in `asyncio.to_thread`. Every side is a process of its own, with an empty folder for
kernels.

Requests come from a third process (open_loop.py), which never waits for an answer. Latency runs from the time at which a
request was due to the time at which the service writes the answer. That includes the delay of the client itself, because it
shares the cores with the training; the table also gives that delay alone. Target: from the opening to the end of training, p99
at most 5 ms above the p99 of the idle service.

    python bench/bench_service.py --against TREE [--starts 6] [--idle 3] [--seconds 5] [--rate 200]

Milliseconds by which p99 rises beside another commit's package and beside this one in turn (bench/against.py), with kernels
kept from before. Target: no loss that the interval shows.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import uvloop
from other_tree import add_missing_names

if "--side" in sys.argv:  # with --against, this process may have another commit's package
    add_missing_names()

from against import compare
from common import CORES, ROOT, Side, Table, arguments, batch, in_turn, publish, target

from asynctile import Engine
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
OURS, TORCH = "asynctile", "torch in a thread"
SIDES = tuple(f"{who}, {loop}" for who in (OURS, TORCH) for loop in LOOPS)
#: The most milliseconds that p99 may rise.
MOST_MS = 5.0
#: Seconds that a request waits between question and answer, and seconds of requests before anything is counted.
DATABASE_S, SETTLE_S = 1e-3, 1.0
#: The phases of a process, in order. A side skips the phases that it does not have.
IDLE, OPENING, FIRST, STEPS, CLOSING = "idle", "engine opened, kernels compiled", "model made, first steps", "steps", "closed"
#: All phases together: a service must cope with all that a training does.
WHOLE = "all of the training"
PERCENTILES = (50, 99, 100)


def config_of(options: Namespace) -> GPT2Config:
    return GPT2Config(n_layer=options.layers, n_head=max(1, options.width // 64), n_embd=options.width,
                      block_size=options.length, vocab_size=options.vocab)  # fmt: skip


class Service:
    """One side in its process: the service, and a training next to it."""

    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.config = config_of(options)
        self.inputs = batch(self.config, options.batch, options.length)
        self.torch_step = None if options.side.startswith(OURS) else importlib.import_module("torch_step")
        self.steps = 0
        self.asked = asyncio.Event()
        self.marks: list[tuple[str, float, float]] = []

    def mark(self, phase: str) -> None:
        """Record that a phase begins: the time, and the CPU time of this process and its children so far."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        self.marks.append((phase, time.perf_counter(), sum(one.ru_utime + one.ru_stime for one in used)))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        while line := await reader.readline():
            self.asked.set()
            question = json.loads(line)
            await asyncio.sleep(DATABASE_S)
            found = {"index": question["index"], "total": sum(question["values"]), "steps": self.steps}
            writer.write(json.dumps(found | {"answered": time.perf_counter()}).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def run(self) -> None:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        async with server:
            print(server.sockets[0].getsockname()[1], flush=True)
            await self.asked.wait()
            await asyncio.sleep(SETTLE_S)
            self.mark(IDLE)
            await asyncio.sleep(self.options.idle)
            await (self.ours() if self.torch_step is None else self.theirs(self.torch_step))
            self.mark("end")
            print(json.dumps({"marks": self.marks, "steps": self.steps, "switch": sys.getswitchinterval()}), flush=True)
            await asyncio.to_thread(sys.stdin.read)  # returns when the client has all its answers

    async def ours(self) -> None:
        self.mark(OPENING)
        async with Engine("cpu") as engine:
            self.mark(FIRST)
            trainer = Trainer(await GPT2.create(engine, self.config, seed=1), AdamW(lr=1e-4))

            async def step() -> bool:
                return bool((await trainer.step(*self.inputs)).played)

            await self.train(step)
            self.mark(CLOSING)

    async def theirs(self, torch_step: Any) -> None:
        torch = torch_step.torch
        assert torch.get_num_threads() == CORES, "torch must have every core"
        self.mark(FIRST)
        inputs = [torch.from_numpy(ids).long() for ids in self.inputs]

        def made() -> tuple[Any, Any]:
            torch.manual_seed(1)
            model = torch_step.Reference(self.config)
            return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        training = await asyncio.to_thread(made)

        async def step() -> bool:
            await asyncio.to_thread(torch_step.one_step, *training, *inputs)
            return True

        await self.train(step)

    async def train(self, step: Callable[[], Awaitable[bool]]) -> None:
        """Train until step() reports the first step like all later ones, then for the seconds of the options."""
        while not await step():
            self.steps += 1
        self.mark(STEPS)
        self.steps = 0
        until = time.perf_counter() + self.options.seconds
        while time.perf_counter() < until:
            await step()
            self.steps += 1


class Measured:
    """The latencies of one side, one value per round.

    lags: for each phase and percentile, milliseconds from when a request was due. others: for each phase, p99 from when the
    request was in the socket, p99 of the client's delay, cores used, and number of requests.
    """

    def __init__(self, name: str, options: Namespace) -> None:
        self.name = name
        self.options = options
        self.lags: dict[str, list[tuple[float, ...]]] = {}
        self.others: dict[str, list[tuple[float, ...]]] = {}
        self.step_ms: list[float] = []
        self.switch_s = 0.0

    async def added(self) -> float:
        """Run one round, and return the milliseconds by which p99 rose."""
        with tempfile.TemporaryDirectory() as folder:
            kernels = {} if self.options.keep_kernels else {"NUMBA_CACHE_DIR": folder}
            found, asked = await self.once(os.environ | kernels)
        self.switch_s = found["switch"]
        phases = [(name, begin, end, used) for (name, begin, before), (_, end, after) in pairwise(found["marks"])
                  for used in ((after - before) / (end - begin),)]  # fmt: skip
        spent = sum(used * (end - begin) for _, begin, end, used in phases[1:])
        began, ended = phases[1][1], phases[-1][2]
        phases.append((WHOLE, began, ended, spent / (ended - began)))
        for name, begin, end, used in phases:
            if name == STEPS:
                self.step_ms.append((end - begin) / found["steps"] * 1e3)
            times = 1e3 * np.array([one for one in asked if begin <= one[0] < end])
            if len(times):
                due, sent, answered = times.T
                self.lags.setdefault(name, []).append(tuple(np.percentile(answered - due, PERCENTILES)))
                late = [float(np.percentile(lags, 99)) for lags in (answered - sent, sent - due)]
                self.others.setdefault(name, []).append((*late, used, len(times)))
        return self.rise(-1)[1]

    async def once(self, environment: dict[str, str]) -> tuple[dict[str, Any], list[list[float]]]:
        """Run both processes once, and return the service's phases and the client's requests."""
        given = [f"--{name}={getattr(self.options, name)}" for name in PASSED]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "limit": 1 << 26}
        service = await asyncio.create_subprocess_exec(
            sys.executable, __file__, *given, "--side", self.name, env=environment, **pipes)  # fmt: skip
        assert service.stdout is not None
        port = (await service.stdout.readline()).decode().strip()
        client = await asyncio.create_subprocess_exec(
            sys.executable, str(ROOT / "bench" / "open_loop.py"), port, str(self.options.rate), "1", **pipes)  # fmt: skip
        found = json.loads(await service.stdout.readline())
        asked, _ = await client.communicate(b"")
        await service.communicate(b"")
        return found, json.loads(asked)

    def rise(self, turn: int) -> list[float]:
        """Return by how many milliseconds each percentile rose in one round."""
        return [busy - idle for busy, idle in zip(self.lags[WHOLE][turn], self.lags[IDLE][turn], strict=True)]


#: The options that are passed to the process of a side.
PASSED = ("idle", "seconds", "layers", "width", "length", "batch", "vocab")


def results(sides: list[Measured]) -> list[Table]:
    """Return two tables of medians over the rounds; the column of the longest latency has the longest of all."""
    met = Table("latency of a request, ms", ("service beside", "while", "p50", "p99", "worst", "p99 from the socket on",
                                             "client late, p99", "cores used", "requests"))  # fmt: skip
    shown = "service beside", "p50", "p99", "worst", "target for p99", "p99 from the socket on", "ms a step", "p99 beside steps"
    added = Table("added by all of the training, ms", shown)
    for side in sides:
        for phase, lags in side.lags.items():
            p50, p99, worst = zip(*lags, strict=True)
            latency = [statistics.median(p50), statistics.median(p99), max(worst)]
            socket, late, used, count = (statistics.median(values) for values in zip(*side.others[phase], strict=True))
            met.rows.append((side.name, phase, *latency, socket, late, used, int(count)))
        p50, p99, worst = zip(*(side.rise(turn) for turn in range(len(side.lags[WHOLE]))), strict=True)
        rise = statistics.median(p99)
        goal = target(rise, MOST_MS, above=False) if side.name.startswith(OURS) else None
        socket = statistics.median(
            busy[0] - idle[0] for busy, idle in zip(side.others[WHOLE], side.others[IDLE], strict=True)
        )
        step_ms = statistics.median(side.step_ms)
        # Compiling takes longest and leaves a core free, so most requests of the whole training meet only that.
        steps = statistics.median(busy[1] - idle[1] for busy, idle in zip(side.lags[STEPS], side.lags[IDLE], strict=True))
        added.rows.append((side.name, statistics.median(p50), rise, max(worst), goal, socket, step_ms, steps))
    return [added, met]


@asynccontextmanager
async def opened(options: Namespace) -> AsyncIterator[dict[str, Side]]:
    """Yield the sides that a process of --against measures."""
    yield {name: Measured(name, options).added for name in options.sides if name.startswith(OURS)}


async def main(options: Namespace) -> None:
    model = {"model": f"GPT-2, {config_of(options).summary}, T {options.length}, B {options.batch}, float32, on cpu"}
    if options.against:
        await compare("bench_service", __doc__, options, "ms", {}, model)
        return
    sides = [Measured(name, options) for name in options.sides]
    await in_turn({side.name: side.added for side in sides}, options.rounds)
    configuration = {
        **model,
        "service": f"{options.rate:g} requests a second (Poisson), each awaits {DATABASE_S * 1e3:g} ms in it",
        "interpreter's switch interval": ", ".join(sorted({f"{side.switch_s * 1e3:g} ms" for side in sides})),
        "kernels": "kept from before" if options.keep_kernels else "compiled in every process",
        "repeats": f"median of {options.rounds} rounds, sides in turn; the worst of all",
    }
    publish("bench_service", __doc__, configuration, results(sides), write=options.write)


if __name__ == "__main__":
    against = {"starts": 6, "rounds": 1, "idle": 3.0, "seconds": 5.0, "keep_kernels": True}
    chosen = arguments(__doc__, against, rounds=2, idle=5.0, seconds=10.0, rate=200.0, layers=8, width=256, length=128, batch=4,
                       vocab=4096, sides=SIDES, keep_kernels=False, side="")  # fmt: skip
    if chosen.side:
        with asyncio.Runner(loop_factory=LOOPS[chosen.side.rpartition(", ")[2]]) as runner:
            runner.run(Service(chosen).run())
    else:
        asyncio.run(main(chosen))
