"""What does a streamed step cost the host, if the GPU takes no time at all?

    python bench/bench_replay.py [--models gpt2 gpt2-medium gpt2-xl] [--caps 0 0.10 0.25 0.50] [--updates device auto]
                                 [--scale 8] [--steps 7] [--write]

The real engine, CUDA device and streams run on a driver whose calls return at once and are counted (tests/cuda/idle.py), and
AdamW in RAM is a kernel that does nothing. What remains is Python and the RAM in which tiles begin; CUDA's own calls would come
on top. Models have 1/scale of the width, vocabulary and length of their names, and 1/scale of the tile: as many operations and
copies as the full models, without their bytes. 16 sequences, bf16, device memory capped at a share of the states (0: no cap),
the tiles of `PLACED` in gpu_rows.py. Updates are on the device, or placed as `auto` would at the rates that plans assume of an
H200; those rates are scaled down as well.

The tables give a step from the third on, as the median of --steps: replayed, and the same step issued one operation after
another (plays = False). CPU time is that of all threads of this process; time in the loop is that of the engine's own thread.
Entries are the operations and copies of all kinds in the step's schedule; nodes are those of the graphs that it launches.
Targets: at most 50 driver calls and 20 ms of CPU time a step, at most 1.1 nodes an entry, and for gpt2 without a cap at most
0.5 ms inside the engine's loop.

A last table gives the one-time costs of the second step: its CPU time, which includes making, binding and capturing the
schedule; the capture alone; and for comparison an issued second step. It also gives the RAM that all of that keeps, by
tracemalloc, in a run of its own.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import tracemalloc
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from common import Table, arguments, batch, publish
from gpu_rows import PLACED, config_named
from watched import WatchedGraphs

import asynctile.device.cuda
from asynctile import Engine
from asynctile.kernels import cpu as cpu_kernels
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from asynctile.schedule.rates import Rates, assumed
from asynctile.share import runtime_of
from tests.cuda.idle import IdleDriver
from tests.inside_engine import device_of, schedule_of

#: Targets of a step: driver calls, CPU milliseconds of all threads, nodes per entry.
MOST_CALLS, MOST_CPU_MS, MOST_NODES = 50, 20.0, 1.1
#: Target in milliseconds inside the loop, for this model without a cap.
MOST_LOOP_MS, SMALLEST = 0.5, "gpt2"
#: Steps before measuring: the first loads the tiles, the second is planned and captured.
FIRST = 2
BATCH, LENGTH = 16, 1024
MIB = 1 << 20
#: Columns.
TITLE = ("model", "cap", "updates")
REPLAYED = (*TITLE, "entries", "nodes", "an entry", "graphs", "driver calls", "CPU ms", "in the loop ms", "wall ms", "wanted")
ISSUED = (*TITLE, "operations", "driver calls", "CPU ms", "in the loop ms", "wall ms", "CPU us an operation")
ONCE = (*TITLE, "graphs captured", "CPU s", "of that capture", "issued s", "kept MiB", "at most MiB")


@dataclass(frozen=True)
class Case:
    """A training. share: the cap as a share of the states, 0 for none. update: as in Trainer."""

    name: str
    share: float
    update: str

    @property
    def title(self) -> tuple[str, str, str]:
        return self.name, f"{self.share:.0%}" if self.share else "none", self.update


@dataclass(frozen=True)
class Step:
    """The costs of one step: driver calls, seconds, graphs, nodes, operations.

    cpu_s: of all threads. loop_s: of the loop's thread. wall_s: by the clock.
    """

    calls: int
    cpu_s: float
    loop_s: float
    wall_s: float
    graphs: int
    nodes: int
    operations: int


@dataclass(frozen=True)
class Run:
    """All steps of a training. captured: graphs captured. capture_s: CPU seconds of capturing.

    entries: entries of the schedule that is replayed; None if nothing is replayed.
    """

    steps: list[Step]
    entries: int | None
    captured: int
    capture_s: float

    def median(self, what: str) -> float:
        """Return the median over the steps after the first ones."""
        return statistics.median(getattr(step, what) for step in self.steps[FIRST:])


def cases(options: Namespace) -> Iterator[Case]:
    """Yield all trainings. Without a cap no update is in RAM."""
    for name in options.models:
        for share in options.caps:
            for update in options.updates if share else ("device",):
                yield Case(name, share, update)


def shrunk(config: GPT2Config, scale: int) -> GPT2Config:
    """Return a config with as many layers and heads, and 1/scale of everything that is cut into tiles."""
    return GPT2Config(
        n_layer=config.n_layer, n_head=config.n_head, n_embd=config.n_embd // scale,
        block_size=config.block_size // scale, vocab_size=config.vocab_size // scale,
    )  # fmt: skip


def shrunk_rates(scale: int) -> Rates:
    """Return rates at which compute, copies and updates of a shrunk model relate as those of the full model on an H200.

    A shrunk step has 1/scale^3 of the FLOPs and 1/scale^2 of the bytes. The least time of an operation shrinks like the bytes.
    """
    whole = assumed("cuda:0", "bf16")
    return replace(whole, flops_per_s=whole.flops_per_s / scale, operation_s=whole.operation_s / scale**2)


def nothing_takes_time() -> None:
    """Replace the driver and AdamW in RAM by ones that do nothing, for all later engines."""
    asynctile.device.open_driver = lambda name: IdleDriver()
    empty = dict.fromkeys(asynctile.device.cuda.ON_HOST, lambda *operands: None)
    asynctile.device.cuda.cpu_kernels = SimpleNamespace(KERNELS=empty, warm=cpu_kernels.warm)


@asynccontextmanager
async def training(case: Case, options: Namespace, *, plays: bool) -> AsyncIterator[Trainer]:
    """Open a trainer on an engine of its own."""
    whole = config_named(case.name, LENGTH)
    config = shrunk(whole, options.scale)
    tile = (PLACED[case.name, case.share] if case.share else whole.inner) // options.scale
    cap = int(case.share * config.states_nbytes) or None
    async with Engine("cuda:0", device_memory=cap, precision="bf16", rates=shrunk_rates(options.scale)) as engine:
        engine.plays = plays
        model = await GPT2.create(engine, config, seed=1, tile=tile)
        yield Trainer(model, AdamW(lr=1e-4), recompute=True, update=case.update)


async def run(case: Case, options: Namespace, *, plays: bool) -> Run:
    async with training(case, options, plays=plays) as trainer:
        engine, config = trainer.model.engine, trainer.model.config
        driver = device_of(engine).driver
        graphs, (tokens, targets) = WatchedGraphs(driver, time.thread_time), batch(config, BATCH, config.block_size)

        async def loop_s() -> float:
            return time.thread_time()

        async def asked() -> float:
            """Return the time in the loop that asking for its time takes."""
            return -await runtime_of(engine).call(loop_s()) + await runtime_of(engine).call(loop_s())

        asking_s = statistics.median([await asked() for _ in range(9)])
        steps = []
        for _ in range(FIRST + options.steps):
            launched, before = len(graphs.launched), engine.statistics().operations
            calls, wall_s, cpu_s = calls_of(driver), time.perf_counter(), time.process_time()
            began_s = await runtime_of(engine).call(loop_s())
            await trainer.step(tokens, targets)
            in_loop_s = await runtime_of(engine).call(loop_s()) - began_s - asking_s
            cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
            some = [graph for graph, _ in graphs.launched[launched:]]
            steps.append(Step(calls=calls_of(driver) - calls, cpu_s=cpu_s, loop_s=in_loop_s, wall_s=wall_s, graphs=len(some),
                              nodes=sum(nodes_of(driver, graph) for graph in some),
                              operations=engine.statistics().operations - before))  # fmt: skip
        entries = len(schedule_of(engine)) if plays else None
        return Run(steps, entries, graphs.captured, graphs.capture_s)


def calls_of(driver: IdleDriver) -> int:
    """Return all driver calls except `bind`, which each thread makes once."""
    return sum(count for name, count in driver.calls.items() if name != "bind")


def nodes_of(driver: IdleDriver, graph: int) -> int:
    return sum(driver.captured[graph - 1].values())


async def kept_nbytes(case: Case, options: Namespace) -> tuple[int, int]:
    """Return the bytes that the second and third step keep in RAM, and their peak, without tiles."""
    async with training(case, options, plays=True) as trainer:
        config = trainer.model.config
        some = batch(config, BATCH, config.block_size)
        await trainer.step(*some)
        tracemalloc.start()
        try:
            for _ in range(2):
                await trainer.step(*some)
            return tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()


def missed(case: Case, found: Run) -> str:
    """Name the targets that a replayed step misses; "met" if it misses none."""
    wanted = {"calls": found.median("calls") <= MOST_CALLS, "CPU": found.median("cpu_s") * 1e3 <= MOST_CPU_MS}
    if case.share:
        wanted["nodes"] = found.median("nodes") <= MOST_NODES * (found.entries or 0)
    elif case.name == SMALLEST:
        wanted["loop"] = found.median("loop_s") * 1e3 <= MOST_LOOP_MS
    names = ", ".join(name for name, met in wanted.items() if not met)
    return f"MISSED: {names}" if names else "met"


async def rows_of(case: Case, options: Namespace) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Return one row for each of the three tables."""
    replayed, issued = await run(case, options, plays=True), await run(case, options, plays=False)
    kept, most = await kept_nbytes(case, options)
    assert replayed.entries is not None
    nodes, operations = round(replayed.median("nodes")), round(issued.median("operations"))
    times = [[1e3 * one.median(name) for name in ("cpu_s", "loop_s", "wall_s")] for one in (replayed, issued)]
    return (
        (*case.title, replayed.entries, nodes, nodes / replayed.entries, round(replayed.median("graphs")),
         round(replayed.median("calls")), *times[0], missed(case, replayed)),
        (*case.title, operations, round(issued.median("calls")), *times[1], 1e3 * times[1][0] / operations),
        (*case.title, replayed.captured, replayed.steps[1].cpu_s, replayed.capture_s, issued.steps[1].cpu_s, kept / MIB,
         most / MIB),
    )  # fmt: skip


async def main(options: Namespace) -> None:
    nothing_takes_time()
    found = [Table("a replayed step", REPLAYED), Table("the same step issued", ISSUED), Table("once, in the second step", ONCE)]
    for case in cases(options):
        for table, row in zip(found, await rows_of(case, options), strict=True):
            table.rows.append(row)
            print(f"{table.title}: {row}", flush=True)
    configuration = {"batch": f"{BATCH} x {LENGTH} tokens, bf16, activations recomputed", "scale": f"1/{options.scale}",
                     "repeats": f"median of {options.steps} steps from the third on"}  # fmt: skip
    publish("bench_replay", __doc__, configuration, found, write=options.write)


if __name__ == "__main__":
    np.seterr(all="ignore")
    asyncio.run(main(arguments(__doc__, models=("gpt2", "gpt2-medium", "gpt2-xl"), caps=(0.0, 0.10, 0.25, 0.50),
                               updates=("device", "auto"), scale=8, steps=7)))  # fmt: skip
