"""What the GPU benchmarks share: options, models, and steps of a training on an engine.

Every part runs end to end without a GPU, on `--device emulated --precision fp32`, or on `--device soft`: the CUDA device over a
driver on the CPU (tests/cuda/driver.py), far slower. That is a rehearsal, which cannot be written.
How fast this GPU could be is gpu_peaks.py, what PyTorch does gpu_torch.py, how results are kept gpu_record.py.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package need not be installed

import numpy as np
from common import arguments, batch
from gpu_record import no_gpu

import asynctile.device
from asynctile import Engine
from asynctile.demand import measure
from asynctile.grain import grain_of
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from asynctile.layers.floor import floor_demand
from asynctile.precision import to_bf16

TINY = GPT2Config(n_layer=2, n_head=2, n_embd=64, block_size=64, vocab_size=500)
#: Edges of tiles to choose from under a cap, beside the model's own widths.
LADDER = (512, 384, 256, 128, 64, 32, 16)


def options_of(text: str | None, **more: Any) -> argparse.Namespace:
    """Options of a part: --device, --precision, --write, and those of `more` as in common.arguments."""
    options = arguments(text, device="cuda:0", precision="bf16", **more)
    on_gpu = options.device.startswith("cuda")
    if options.write and not on_gpu:
        sys.exit(f"--write is for results of a GPU: --device {options.device} is a rehearsal; leave --write out")
    if on_gpu and (why := no_gpu()):
        sys.exit(f"no GPU to measure on: {why}; --device emulated --precision fp32 rehearses without one")
    if options.device == "soft":
        from tests.cuda.driver import SoftDriver

        asynctile.device.open_driver = lambda name: SoftDriver(nbytes=4 << 30)
    return options


def engine_name(options: argparse.Namespace) -> str:
    """The device of the options as the engine calls it."""
    return "cuda:0" if options.device == "soft" else options.device


def engine_of(options: argparse.Namespace, **caps: Any) -> Engine:
    """An engine on the device and in the precision of the options."""
    return Engine(engine_name(options), precision=options.precision, **caps)


def config_named(name: str, length: int) -> GPT2Config:
    """A published size for sequences of `length` tokens, or "tiny" for a rehearsal."""
    return TINY if name == "tiny" else GPT2Config.named(name, block_size=length)


def model_flops(config: GPT2Config, tokens: int, length: int) -> float:
    """FLOPs that a step on `tokens` tokens needs, without recomputation: 6 N + 12 L T d a token."""
    return tokens * (6.0 * config.parameter_count + 12.0 * config.n_layer * length * config.n_embd)


def block_flops(config: GPT2Config, tokens: int, length: int) -> float:
    """Those of the blocks alone: 72 L d^2 + 12 L T d a token."""
    d = config.n_embd
    return tokens * config.n_layer * (72.0 * d * d + 12.0 * length * d)


def memory_tile(config: GPT2Config) -> int:
    """The tile edge where memory is no concern: every matrix of a block is one tile."""
    return config.inner


def tile_under(options: argparse.Namespace, config: GPT2Config, cap: int, share: float = 0.25) -> int:
    """The largest tile edge whose floor is at most `share` of a cap in bytes; the smallest if none is."""
    edges = [edge for edge in (config.inner, 2 * config.n_embd, config.n_embd) if edge > LADDER[0]]
    grain = grain_of(engine_name(options))
    floors = ((edge, floor_demand(config, edge, grain, options.precision).floor_nbytes) for edge in (*edges, *LADDER))
    return next((edge for edge, floor in floors if floor <= share * cap), LADDER[-1])


def layers_in(memory: int, needed: Callable[[int], int]) -> int:
    """How many layers fit in `memory` bytes where `needed(layers)` is a + b layers; 0 if not even one."""
    one, two = needed(1), needed(2)
    return max(0, (memory - one) // (two - one) + 1)


async def new_trainer(
    engine: Engine, config: GPT2Config, tile: int | None, *, recompute: bool, micro_batches: int = 1
) -> Trainer:
    """A model of random weights, made by copying one stretch of numbers: billions of draws would take minutes."""
    model = GPT2(engine, config, tile)
    noise = np.random.default_rng(1).standard_normal(max(math.prod(tile.shape) for tile in model.weights()), np.float32)
    made: dict[tuple[Any, ...], tuple[np.ndarray, np.ndarray]] = {}

    def pieces() -> Iterator[tuple[Any, np.ndarray]]:
        for parameter in model.parameters.values():
            for key, tile in parameter.weights.items():
                kind = (tile.shape, parameter.mean, parameter.std)
                if kind not in made:
                    drawn = noise[: math.prod(tile.shape)].reshape(tile.shape)
                    piece = np.float32(parameter.mean) + np.float32(parameter.std) * drawn
                    made[kind] = piece, to_bf16(piece)
                yield tile, made[kind][0]
                if key in parameter.copies:
                    yield parameter.copies[key], made[kind][1]

    model.check_floor()
    await engine.reserve(measure([], model.weights()))
    await engine.store(pieces())
    return Trainer(model, AdamW(lr=1e-4), recompute=recompute, micro_batches=micro_batches)


class Speed:
    """Steps of a trainer on one batch of `size` sequences of `length` tokens.

    step_s: median wall seconds of `count` steps. stall_s: median of what they report. report: of the last one. Three steps come
    first: one brings the tiles, one writes graphs down, one is the first in the steady state.
    """

    WARM = 3

    def __init__(self, seconds: list[float], reports: list[Any]) -> None:
        self.step_s = statistics.median(seconds)
        self.stall_s = statistics.median(report.stall_s for report in reports)
        self.report = reports[-1]

    @classmethod
    async def of(cls, trainer: Trainer, size: int, length: int, count: int) -> Speed:
        tokens, targets = batch(trainer.model.config, size, length)
        seconds, reports = [], []
        for _ in range(cls.WARM + count):
            start = time.perf_counter()
            reports.append(await trainer.step(tokens, targets))
            seconds.append(time.perf_counter() - start)
        if not np.isfinite(reports[-1].loss):
            raise ArithmeticError(f"the loss is {reports[-1].loss}, so this is no training")
        return cls(seconds[cls.WARM :], reports[cls.WARM :])


def seconds_of(work: Callable[[], Any], synchronize: Callable[[], Any], repeats: int, groups: int = 3) -> float:
    """Seconds of one call of `work`: median over groups of `repeats` calls, after one group to warm up."""
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
