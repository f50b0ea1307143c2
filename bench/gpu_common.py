"""The shared part of the GPU benchmarks: options, engines, and steps of a training on one.

Every part runs end to end without a GPU: with --rehearse, small, on the CUDA device over a driver on the CPU
(tests/cuda/driver.py), with its results in runs/rehearsal; or full-size with `--device emulated --precision fp32`, without
writing results. gpu_rows.py lists the trainings, gpu_peaks.py measures how fast this GPU could be, gpu_torch.py runs PyTorch,
gpu_record.py keeps the results.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the package need not be installed

import numpy as np
from common import arguments, batch
from gpu_record import Section, no_gpu
from gpu_rows import Options, Row, engine_name

import asynctile.device
from asynctile import Engine
from asynctile.kernels.bf16 import to_bf16
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from asynctile.layers.model_state import ModelState
from asynctile.program.needs import demand_of
from asynctile.share import runtime_of
from tests.inside_engine import device_of

#: Memory of the driver on the CPU.
SOFT_NBYTES = 4 << 30


def options_of(text: str | None, part: Options) -> argparse.Namespace:
    """Parse the options of a part: --device, --precision, --rehearse, --write, and its own as in common.arguments."""
    full, small = part
    rehearsed = "--rehearse" in sys.argv
    device = "soft" if rehearsed else "cuda:0"
    options = arguments(text, device=device, precision="bf16", rehearse=False, **(full | small if rehearsed else full))
    on_gpu = options.device.startswith("cuda")
    if options.write and not on_gpu and not rehearsed:
        sys.exit(f"--write is for results of a GPU, and --device {options.device} is not a GPU; leave --write out")
    if on_gpu and (why := no_gpu()):
        sys.exit(f"no GPU to measure on: {why}; --rehearse runs without a GPU")
    if options.device == "soft":
        from tests.cuda.driver import SoftDriver
        from tests.cuda.node import opener

        asynctile.device.open_driver = opener(SoftDriver, nbytes=SOFT_NBYTES, attends=True)
    return options


@asynccontextmanager
async def engine_of(section: Section, options: argparse.Namespace, **caps: Any) -> AsyncIterator[Engine]:
    """Open an engine with the device and precision of the options. The section records which libraries it uses."""
    async with Engine(engine_name(options), precision=options.precision, **caps) as engine:
        driver = getattr(device_of(engine), "driver", None)
        try:
            section.went_by(driver, options.precision)
            yield engine
        finally:
            section.went_by(driver, options.precision)  # only now are the shapes known that a library refused


def model_flops(config: GPT2Config, tokens: int, length: int) -> float:
    """Return the FLOPs that a step on `tokens` tokens needs, without recomputation: 6 N + 12 L T d a token."""
    return tokens * (6.0 * config.parameter_count + 12.0 * config.n_layer * length * config.n_embd)


def block_flops(config: GPT2Config, tokens: int, length: int) -> float:
    """Return the FLOPs of the blocks alone: 72 L d^2 + 12 L T d a token."""
    d = config.n_embd
    return tokens * config.n_layer * (72.0 * d * d + 12.0 * length * d)


async def new_trainer(engine: Engine, row: Row) -> Trainer:
    """Make a model of random weights, copied from one stretch of numbers: drawing billions of numbers would take minutes."""
    runtime = runtime_of(engine)
    state = ModelState(runtime, row.config, row.tile)
    noise = np.random.default_rng(1).standard_normal(max(math.prod(tile.shape) for tile in state.weights()), np.float32)
    made: dict[tuple[Any, ...], tuple[np.ndarray, np.ndarray]] = {}

    def pieces() -> Iterator[tuple[Any, np.ndarray]]:
        for parameter in state.parameters.values():
            for key, tile in parameter.weights.items():
                kind = (tile.shape, parameter.mean, parameter.std)
                if kind not in made:
                    drawn = noise[: math.prod(tile.shape)].reshape(tile.shape)
                    piece = np.float32(parameter.mean) + np.float32(parameter.std) * drawn
                    made[kind] = piece, to_bf16(piece)
                yield tile, made[kind][0]
                if key in parameter.copies:
                    yield parameter.copies[key], made[kind][1]

    state.check_floor()
    await runtime.reserve(demand_of([], state.weights()))
    await runtime.store(pieces())
    return Trainer(GPT2(engine, state), AdamW(lr=1e-4), recompute=row.recompute, micro_batches=row.parts,
                   replicas=row.replicas)  # fmt: skip


class Speed:
    """Steps of a trainer on one batch of a row.

    step_s: median wall seconds of `count` steps. report: the report of the last one. Three steps run first: one loads the
    tiles, one captures graphs, and one is the first in the steady state.
    """

    WARM = 3

    def __init__(self, seconds: list[float], reports: list[Any]) -> None:
        self.step_s = statistics.median(seconds)
        self.report = reports[-1]

    @classmethod
    async def of(cls, trainer: Trainer, row: Row, count: int) -> Speed:
        tokens, targets = batch(row.config, row.batch, row.length)
        seconds, reports = [], []
        for _ in range(cls.WARM + count):
            start = time.perf_counter()
            reports.append(await trainer.step(tokens, targets))
            seconds.append(time.perf_counter() - start)
        if not np.isfinite(reports[-1].loss):
            raise ArithmeticError(f"the loss is {reports[-1].loss}, so the training does not work")
        return cls(seconds[cls.WARM :], reports[cls.WARM :])


def seconds_of(work: Callable[[], Any], synchronize: Callable[[], Any], repeats: int, groups: int = 3) -> float:
    """Return the seconds of one call of `work`: the median over groups of `repeats` calls, after one group to warm up."""
    spent = []
    for group in range(groups + 1):
        synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        synchronize()
        if group:
            spent.append((time.perf_counter() - start) / repeats)
    return statistics.median(spent)
