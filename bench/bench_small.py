"""Does the model of `make train` train as fast as in PyTorch, which has all of it in memory?

    python bench/bench_small.py [--rounds 15] [--steps 20] [--write]

The model, batches and AdamW of `asynctile train` with the options of `make train`, float32, on the cores of this machine, in
turn in one process: on `cpu`; on `emulated` under the cap of `make train`, which is below half of the states; on `emulated`
with everything resident; and the same GPT-2 in PyTorch (torch_step.py), eager and compiled, with fused AdamW, the same settings
and learning rates. A step includes everything a training spends on it: its batch, the step, its loss. All sides begin with the
same weights and take the same batches. The losses of the first steps must agree with PyTorch's to 1e-4, and the losses of
asynctile's sides with each other in every bit at every step. PyTorch's threads wait for each other by spinning, so on a busy
machine its figures mean nothing. Targets: under the cap at least as fast as PyTorch eager, on `cpu` at least 1.4 times.

    python bench/bench_small.py --against TREE [--starts 9] [--rounds 2] [--steps 20]

Milliseconds per step of another commit's package and of this one in turn, without PyTorch (bench/against.py). Target: no loss
that the interval shows.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
from against import compare
from common import (
    CORES,
    Side,
    Table,
    alternate,
    arguments,
    in_turn,
    library_gemm_gflops,
    publish,
    rate_side,
    step_flops,
    target,
    tile_gemm_gflops,
)
from paired import CONFIDENCE, FEWEST, change
from small_model import CAPPED, CPU, LENGTH, MODEL, OPTIONS, PLACES, SHAPE, batches, open_trainer

from asynctile.layers.model import model_state_of

EAGER, COMPILED = "torch eager", "torch compiled"
#: The least speed relative to PyTorch eager.
LEAST = {CPU: 1.4, CAPPED: 1.0}
#: The number of first steps whose losses are compared with PyTorch's, and the largest difference allowed. Later losses drift
#: apart by rounding.
COMPARED, CLOSE = 3, 1e-4


class Training:
    """A side: a training that makes some more steps for each measurement.

    step: makes the next step and returns its loss, and whether it was played (None for PyTorch). cpu_ms: CPU time of all
    threads per step, one value per measurement. losses, played: one value per step.
    """

    def __init__(self, step: Callable[[], Awaitable[tuple[float, bool | None]]], steps: int) -> None:
        self._step = step
        self._steps = steps
        self.cpu_ms: list[float] = []
        self.losses: list[float] = []
        self.played: list[bool | None] = []

    async def ms(self) -> float:
        """Return milliseconds per step."""
        began, used = time.perf_counter(), time.process_time()
        for _ in range(self._steps):
            loss, played = await self._step()
            self.losses.append(loss)
            self.played.append(played)
        self.cpu_ms.append((time.process_time() - used) / self._steps * 1e3)
        return (time.perf_counter() - began) / self._steps * 1e3

    @property
    def share_played(self) -> float | None:
        known = [played for played in self.played if played is not None]
        return sum(known) / len(known) if known else None


@asynccontextmanager
async def opened(options: Namespace) -> AsyncIterator[dict[str, Side]]:
    """Yield the sides that a process of --against measures."""
    async with AsyncExitStack() as stack:
        trainers = {name: await open_trainer(stack, name) for name in PLACES}
        yield {name: Training(partial(_ours, one.run(batches())), options.steps).ms for name, one in trainers.items()}


async def open_trainings(stack: AsyncExitStack, steps: int) -> tuple[dict[str, Training], int]:
    """Open all sides with the same weights. Returns them and the edge of asynctile's tiles."""
    from torch_step import TorchTraining

    found: dict[str, Training] = {}
    weights: dict[str, Any] = {}
    for name in PLACES:
        trainer = await open_trainer(stack, name)
        weights = weights or await trainer.model.state_dict()
        found[name] = Training(partial(_ours, trainer.run(batches())), steps)
    for name, compiled in ((EAGER, False), (COMPILED, True)):
        losses = TorchTraining(SHAPE, weights, trainer.optimizer, batches(), compiled=compiled)
        found[name] = Training(partial(_theirs, losses), steps)
    return found, model_state_of(trainer.model).tiling.tile


async def _ours(steps: Any) -> tuple[float, bool | None]:
    report = await anext(steps)
    return report.loss, report.played


async def _theirs(losses: Any) -> tuple[float, None]:
    return next(losses), None


def check_losses(trainings: Mapping[str, Training]) -> float:
    """Return the largest difference to PyTorch eager. Raises AssertionError unless all sides compute the same."""
    ours = [trainings[name].losses for name in PLACES]
    assert all(losses == ours[0] for losses in ours), "the losses of asynctile's sides differ"
    first = np.array([training.losses[:COMPARED] for training in trainings.values()])
    worst = float(np.abs(first - first[list(trainings).index(EAGER)]).max())
    assert worst <= CLOSE, f"first losses, one row a side, differ by up to {worst:.2g}:\n{first}"
    return worst


async def main() -> None:
    options = arguments(__doc__, {"starts": 9, "rounds": 2}, rounds=15, steps=20)
    if options.against:
        await compare("bench_small", __doc__, options, "ms", {}, {"model": MODEL})
    else:
        await beside_torch(options)


async def beside_torch(options: Namespace) -> None:
    from torch_step import torch, torch_gemm_gflops

    if options.rounds < FEWEST or options.steps < COMPARED:
        raise SystemExit(f"give at least --rounds {FEWEST}, for an interval, and --steps {COMPARED}, to compare their losses")
    torch.set_num_threads(CORES)
    async with AsyncExitStack() as stack:
        trainings, tile = await open_trainings(stack, options.steps)
        sides = {name: training.ms for name, training in trainings.items()}
        await in_turn(sides, 1)  # warm up: memory is touched, kernels are compiled
        worst = check_losses(trainings)
        for training in trainings.values():
            training.cpu_ms, training.played = [], []
        found = await in_turn(sides, options.rounds)
        check_losses(trainings)
        rates = await alternate({
            "tiles": rate_side(partial(tile_gemm_gflops, (tile, tile, tile))),
            "BLAS": rate_side(library_gemm_gflops),
            "torch": rate_side(torch_gemm_gflops),
        }, 3)  # fmt: skip
    tokens = OPTIONS.batch_size * LENGTH
    bound_ms = step_flops(SHAPE, tokens, LENGTH) / rates["tiles"] / 1e6
    gemm = Table("GEMM rate, GFLOP/s on all cores", ("library", "GFLOP/s"))
    gemm.rows = [
        (f"asynctile: tiles of {tile} x {tile} x {tile}, one BLAS thread a worker", rates["tiles"]),
        ("the same BLAS: 4096 square, all threads", rates["BLAS"]),
        ("torch: 4096 square, all threads", rates["torch"]),
    ]
    configuration = {
        "model": MODEL,
        "tile": tile,
        "recompute": OPTIONS.recomputing,
        "losses": f"of the first {COMPARED} steps at most {worst:.1g} from those of PyTorch eager, asynctile's equal at all",
        "repeats": f"median of {options.rounds} rounds of {options.steps} steps, its {CONFIDENCE:.0%} interval, sides in turn",
    }
    publish("bench_small", __doc__, configuration, [*results(trainings, found, bound_ms), gemm], write=options.write)


def results(trainings: Mapping[str, Training], found: Mapping[str, list[float]], bound_ms: float) -> list[Table]:
    """Return two tables. found: milliseconds per step of each side, one value per round.

    bound_ms: the time that the FLOPs alone would take.
    """
    step = Table("a step", ("side", "ms", "from", "to", "CPU ms", "played"))
    speed = Table("speed against PyTorch eager", ("side", "times", "from", "to", "target"))
    for name, values in found.items():
        one, training = change(values), trainings[name]
        step.rows.append((name, one.median, one.low, one.high, statistics.median(training.cpu_ms), training.share_played))
        if name != EAGER:
            times = change([theirs / own for theirs, own in zip(found[EAGER], values, strict=True)])
            goal = target(times.median, LEAST[name]) if name in LEAST else None
            speed.rows.append((name, times.median, times.low, times.high, goal))
    step.rows.append(("bound: FLOPs at our tile GEMM rate", bound_ms, None, None, None, None))
    return [step, speed]


if __name__ == "__main__":
    asyncio.run(main())
