"""Does a step that is replayed as CUDA graphs equal the issued one, and what does it cost?

    python bench/gpu_replay.py [--models gpt2 gpt2-xl] [--caps 0.25 0] [--batch 16] [--length 1024] [--steps 3] [--write]

One training for each row, on all of the GPU (cap 0) or with device memory capped at a share of the states: first issued one
operation after another (plays = False), then replayed. The learning rate is 0 in float32, so every step computes the same: loss
and gradient norm must be equal in all of them, bit for bit. (tests/gpu/test_replay.py checks that weights and moments are equal
too.) For each side the table gives seconds per step, CPU seconds of all threads, and the microseconds of the host's calls that
launch graphs. A second table gives the costs before the first replay: that step as a whole; the capture; the part of it that
makes the graphs ready to launch; and the device memory taken by then, not counting tiles.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from common import batch
from gpu_common import engine_of, new_trainer, options_of
from gpu_record import Section
from gpu_rows import REPLAY, Row, in_place
from watched import WatchedGraphs

from asynctile.layers import AdamW, Trainer
from tests.inside_engine import device_of

#: A learning rate that trainers accept and kernels read as 0.
NO_RATE = 1e-60
#: The target for the CPU seconds of a replayed step.
MOST_CPU_S = 0.020
MIB = 1 << 20


@dataclass(frozen=True)
class Side:
    """Steps of one kind: their (loss, norm), wall and CPU seconds, and the seconds of each launch of a graph."""

    results: set[tuple[float, float]]
    step_s: float
    cpu_s: float
    launches_s: list[float]

    @property
    def launch_us(self) -> float | None:
        return 1e6 * statistics.median(self.launches_s) if self.launches_s else None


async def side(trainer: Trainer, row: Row, steps: int, graphs: WatchedGraphs) -> Side:
    """Make one step that is not measured, and `steps` that are."""
    inputs, results, wall, cpu = batch(row.config, row.batch, row.length), set(), [], []
    for index in range(1 + steps):
        if index == 1:
            graphs.launched.clear()
        began, used = time.perf_counter(), time.process_time()
        report = await trainer.step(*inputs)
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
        results.add((report.loss, report.grad_norm))
    launches = [seconds for _, seconds in graphs.launched]
    return Side(results, statistics.median(wall[1:]), statistics.median(cpu[1:]), launches)


class Measured:
    def __init__(self, section: Section, options: Namespace) -> None:
        self.section, self.options = section, options
        self.steps = section.table("steps", "model", "cap", "side", "s a step", "tokens/s", "CPU ms", "launches", "us a launch",
                                   "equal bits", "note")  # fmt: skip
        self.once = section.table("before the first replay", "model", "cap", "step s", "graphs", "capture s",
                                  "ready to launch s", "first launch ms", "device MiB")  # fmt: skip

    async def row(self, name: str, share: float) -> None:
        cap, options = f"{share:.0%}" if share else "none", self.options
        row = in_place(options, name, share)
        with self.section.row(self.steps, name, cap):
            async with engine_of(self.section, options, device_memory=row.cap) as engine:
                trainer = Trainer((await new_trainer(engine, row)).model, AdamW(lr=NO_RATE), recompute=row.recompute)
                driver = getattr(device_of(engine), "driver", None)
                if driver is None:
                    raise ValueError(f"{options.device} has no graphs")
                graphs = WatchedGraphs(driver)
                engine.plays = False
                issued = await side(trainer, row, options.steps, graphs)
                self._add(name, cap, "issued", row, issued)
                engine.plays = True
                await self._first(name, cap, trainer, row, driver, graphs)
                replayed = await side(trainer, row, options.steps, graphs)
            equal = len(issued.results | replayed.results) == 1
            self._add(name, cap, "replayed", row, replayed, equal)
            self._headlines(f"{name}, cap {cap}", issued, replayed, equal)

    async def _first(self, name: str, cap: str, trainer: Trainer, row: Row, driver: Any, graphs: WatchedGraphs) -> None:
        """Make and measure the step that is captured."""
        before, taken, began = driver.memory()[0], graphs.taken_nbytes, time.perf_counter()
        await trainer.step(*batch(row.config, row.batch, row.length))
        lasted, gone = time.perf_counter() - began, before - driver.memory()[0] - (graphs.taken_nbytes - taken)
        first = 1e3 * max((seconds for _, seconds in graphs.launched), default=0.0)
        self.section.add(self.once, name, cap, lasted, graphs.captured, graphs.capture_s, graphs.instantiate_s, first,
                         gone / MIB)  # fmt: skip

    def _add(self, name: str, cap: str, which: str, row: Row, found: Side, equal: bool | None = None) -> None:
        launches = len(found.launches_s) // self.options.steps
        self.section.add(self.steps, name, cap, which, found.step_s, row.tokens / found.step_s, 1e3 * found.cpu_s, launches,
                         found.launch_us, equal)  # fmt: skip

    def _headlines(self, what: str, issued: Side, replayed: Side, equal: bool) -> None:
        headline = self.section.headline
        headline(f"{what}: graphs launched a step", len(replayed.launches_s) // self.options.steps, 1)
        headline(f"{what}: loss and norm of issued and replayed steps are equal", equal, 1)
        headline(f"{what}: CPU s of a replayed step", replayed.cpu_s, MOST_CPU_S, above=False)
        headline(f"{what}: replayed of the issued speed", issued.step_s / replayed.step_s, 1)


async def main(options: Namespace) -> None:
    section = Section("replay", __doc__, options)
    section.configuration["steps"] = f"{options.batch} x {options.length} tokens, recomputing, median of {options.steps}"
    found = Measured(section, options)
    for name in options.models:
        for share in options.caps:
            await found.row(name, share)
    section.end()


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, REPLAY)))
