"""Another commit's package and this one, measured in turn: the `--against TREE` option of a benchmark.

One process per tree (bench/worker.py) opens its engines once and measures one side whenever it is asked. Old and new alternate
for every case in every round, every second round backwards. While one process measures, the other waits at its pipe. All of
that repeats with `--starts` pairs of processes, each warmed up, because the addresses and hashes of a process change its speed
by a percent or two for its whole life, and more rounds in one process cannot show that (Kalibera and Jones, Rigorous
Benchmarking in Reasonable Time, 2013). So each start counts once, with the median of its rounds. bench/paired.py computes the
interval.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from common import ROOT, Table, commit, in_turn, publish
from paired import CONFIDENCE, FEWEST, Bound, change, differences, verdict

COLUMNS = (
    "case", "unit", "old", "new", "new - old", "from", "to", "%", "from %", "to %", "wanted"
)  # fmt: skip


class Worker:
    """A process that measures `tree`. sides: the names of its sides.

    idle_s, idle_cpu_s: how long the process waited, and the CPU time it used meanwhile.
    """

    def __init__(self, tree: Path, process: asyncio.subprocess.Process) -> None:
        self.tree, self._process = tree, process
        self.sides: list[str] = []
        self.idle_s = self.idle_cpu_s = 0.0

    async def ready(self) -> None:
        """Wait until its engines are open. Raises RuntimeError if it measures another package."""
        greeting = await self._answer()
        package = Path(greeting["package"]).resolve()
        if not package.is_relative_to(self.tree):
            raise RuntimeError(f"the process for {self.tree} imported {package}; name a checkout that contains asynctile/")
        self.sides = greeting["sides"]

    async def measure(self, side: str) -> float:
        """Measure a side once, and return its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(side).encode() + b"\n")
        answer = await self._answer()
        self.idle_s += answer["idle_s"]
        self.idle_cpu_s += answer["idle_cpu_s"]
        return float(answer["value"])

    async def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            status = await self._process.wait()
            raise RuntimeError(f"the process for {self.tree} ended with status {status}; its error is printed above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@asynccontextmanager
async def worker(tree: Path, bench: str, options: Mapping[str, Any]) -> AsyncIterator[Worker]:
    """Start a process for `tree` that opens the sides of `opened(options)` in the module `bench`."""
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), bench, json.dumps(options)]
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        yield Worker(tree, process)
        assert process.stdin is not None
        process.stdin.close()
        if await process.wait():
            raise RuntimeError(f"the process for {tree} ended with status {process.returncode} when its engines were closed")
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def compare(
    bench: str,
    text: str | None,
    options: Namespace,
    unit: str,
    bounds: Mapping[str, Bound],
    configuration: Mapping[str, Any],
    **more: Any,
) -> None:
    """Measure the sides of the module `bench` on both trees, print the table, and write it with --write.

    text: the docstring of `bench`. unit: the unit of the results. bounds: how much more a side may take; sides without a bound
    may take no more. more: further options for the processes.
    """
    if options.starts < FEWEST:
        raise SystemExit(f"--starts {options.starts} is too few for an interval of {CONFIDENCE:.0%}: give at least {FEWEST}")
    trees = {"old": options.against.resolve(), "new": ROOT}
    passed = {name: value for name, value in vars(options).items() if name not in ("against", "starts", "write")} | more
    starts: list[dict[str, list[float]]] = []
    idle_s = idle_cpu_s = 0.0
    for start in range(options.starts):
        print(f"start {start + 1} of {options.starts}", file=sys.stderr, flush=True)
        async with AsyncExitStack() as stack:
            workers = {which: await stack.enter_async_context(worker(tree, bench, passed)) for which, tree in trees.items()}
            for each in workers.values():
                await each.ready()
            cases = workers["new"].sides
            sides = {f"{case}, {which}": partial(each.measure, case) for case in cases for which, each in workers.items()}
            await in_turn(sides, 1)
            starts.append(await in_turn(sides, options.rounds, backwards=start % 2 == 1))
            idle_s += sum(each.idle_s for each in workers.values())
            idle_cpu_s += sum(each.idle_cpu_s for each in workers.values())
    table = Table(f"old and new, {CONFIDENCE:.0%} intervals of the median of the paired differences", COLUMNS)
    for case in cases:
        pairs = [(found[f"{case}, old"], found[f"{case}, new"]) for found in starts]
        table.rows.append((case, unit, *row(pairs, unit, bounds.get(case))))
    commits = {which: commit(tree) for which, tree in trees.items()}
    repeats = {
        "repeats": f"{options.starts} starts of a process for each tree, in each the median of {options.rounds} rounds, old "
        "and new in turn",
        "interval": f"of order statistics, over {options.starts} starts",
        "an idle process used": f"{idle_cpu_s / idle_s:.2%} of a core",
    }
    publish(f"{bench}_against", text, {**commits, **configuration, **repeats}, [table], write=options.write)


def row(pairs: list[tuple[list[float], list[float]]], unit: str, bound: Bound | None) -> tuple[Any, ...]:
    """Return a case's cells of the table after its name and unit. pairs: for each start the rounds of old and of new."""
    more, percent = (change(values) for values in differences(pairs))
    old, new = (statistics.median(statistics.median(pair[which]) for pair in pairs) for which in (0, 1))
    judged = percent if bound and bound.percent else more
    shown = (more.median, more.low, more.high, percent.median, percent.low, percent.high)
    return old, new, *shown, verdict(judged, bound, unit)
