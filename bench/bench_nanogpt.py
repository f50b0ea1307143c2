"""Does a training with the settings of nanoGPT's README follow the one in PyTorch, and how fast is it?

    python bench/bench_nanogpt.py [--settings small large] [--pieces 20] [--steps N] [--no-compiled] [--write]

small: the README's settings for a CPU (4 layers, 4 heads, width 128, 64 tokens, 12 sequences, 2,000 steps). large: the first
300 of its 5,000 steps for a GPU (6 layers, 6 heads, width 384, 256 tokens), with 12 sequences a step instead of 64 and no
dropout. Both use its optimizer: a learning rate from 1e-3 to 1e-4 by a cosine after a warm-up of 100 steps, betas 0.9 and 0.99,
decay 0.1, gradients clipped at 1.0. Two things differ: the text, which is the source of Python's standard library as bytes
(nanoGPT's Shakespeare is a download), and the model, which has biases and the tanh form of GELU, like GPT-2.

The sides run in turn, piece by piece, in one process, on all cores: asynctile on `cpu`; the same GPT-2 in PyTorch
(torch_step.py), eager and compiled, which reads the start weights from a folder that asynctile saved and takes the same
batches; and asynctile on other batches. The last two show the noise: that of rounding, and that of the order in which a text is
read. At the end each side computes its loss on the same held-out windows. PyTorch's threads wait for each other by spinning, so
on a busy machine the times mean nothing, but the losses do. Targets: the losses of the first 200 steps differ by at most 1e-3
from those of PyTorch eager; the last validation loss differs from PyTorch's by no more than noise. --steps N: fewer steps of
the same schedule. --write also draws both curves (bench_nanogpt.png).
"""

from __future__ import annotations

import asyncio
import io
import tempfile
from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_small import COMPILED, EAGER, Training
from common import CORES, RESULTS, Table, arguments, commit, in_turn, publish, show, target
from matplotlib.figure import Figure
from paired import CONFIDENCE, FEWEST, change
from safetensors.numpy import load_file
from small_model import text
from torch_step import TorchTraining, torch

from asynctile import Engine
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer, evaluate
from asynctile.layers.data import Batches, ValidationBatches

OURS, OTHERS = "asynctile", "asynctile, other batches"
BATCH, CLIP = 12, 1.0
#: The last bytes of the text, held out as in `asynctile train`.
HELD_OUT = 1 << 17
#: The number of steps whose losses are compared one by one, and the largest difference allowed.
COMPARED, CLOSE = 200, 1e-3
#: The steps at which the largest difference so far is reported.
MARKS = (1, 10, 50, 100, COMPARED, 500, 1000, 2000)


@dataclass(frozen=True)
class Setting:
    """A setting of nanoGPT's README: the model, the steps to make, and the steps of its schedule."""

    config: GPT2Config
    steps: int
    schedule: int

    @property
    def optimizer(self) -> AdamW:
        return AdamW(lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, warmup=100, decay_steps=self.schedule, min_lr=1e-4)

    @property
    def summary(self) -> str:
        return f"GPT-2, {self.config.summary}, T {self.config.block_size}, B {BATCH}, float32, {self.steps} steps"


SETTINGS = {
    "small": Setting(GPT2Config(n_layer=4, n_head=4, n_embd=128, block_size=64, vocab_size=256), 2000, 2000),
    "large": Setting(GPT2Config(n_layer=6, n_head=6, n_embd=384, block_size=256, vocab_size=256), 300, 5000),
}


@dataclass
class Side:
    """A training, and a way to measure its model's mean loss.

    ms: milliseconds per step, for each piece. held_out: the mean loss at the end.
    """

    training: Training
    evaluate: Callable[[ValidationBatches], Awaitable[float]]
    ms: tuple[float, ...] = ()
    held_out: float = float("nan")

    @property
    def losses(self) -> list[float]:
        return self.training.losses


async def open_sides(stack: AsyncExitStack, setting: Setting, steps: int, compiled: bool) -> dict[str, Side]:
    """Open all sides with the same weights. steps: steps per piece."""
    found, config = {}, setting.config
    for name, seed in ((OURS, 1), (OTHERS, 2)):
        engine = await stack.enter_async_context(Engine("cpu"))
        trainer = Trainer(await GPT2.create(engine, config, seed=1), setting.optimizer, clip_norm=CLIP)
        training = Training(partial(_our_step, trainer.run(batches(config, seed))), steps)
        found[name] = Side(training, partial(_our_loss, trainer.model))
    with tempfile.TemporaryDirectory() as folder:
        await trainer.model.save_pretrained(Path(folder, "start"))
        weights = load_file(Path(folder, "start", "model.safetensors"))
    for name in (EAGER, COMPILED) if compiled else (EAGER,):
        same = batches(config, 1)
        theirs = TorchTraining(config, weights, setting.optimizer, same, compiled=name == COMPILED, clip_norm=CLIP)
        found[name] = Side(Training(partial(_their_step, theirs), steps), partial(_their_loss, theirs))
    return found


def batches(config: GPT2Config, seed: int) -> Batches:
    return Batches(text()[:-HELD_OUT], BATCH, config.block_size, seed)


async def _our_step(steps: Any) -> tuple[float, bool]:
    report = await anext(steps)
    return report.loss, report.played


async def _their_step(theirs: TorchTraining) -> tuple[float, None]:
    return next(theirs), None


async def _our_loss(model: GPT2, held_out: ValidationBatches) -> float:
    return (await evaluate(model, held_out)).loss


async def _their_loss(theirs: TorchTraining, held_out: ValidationBatches) -> float:
    return theirs.evaluate(held_out)


async def trained(setting: Setting, options: Namespace) -> dict[str, Side]:
    """Train every side to its end, and return them."""
    piece = max(1, (options.steps or setting.steps) // options.pieces)
    async with AsyncExitStack() as stack:
        sides = await open_sides(stack, setting, piece, not options.no_compiled)
        found = await in_turn({name: side.training.ms for name, side in sides.items()}, options.pieces)
        for name, side in sides.items():
            side.ms = tuple(found[name])
            side.held_out = await side.evaluate(ValidationBatches(text()[-HELD_OUT:], BATCH, setting.config.block_size))
            print(f"{name}: {show(side.held_out)} on held-out text", flush=True)
    return sides


def results(name: str, sides: Mapping[str, Side]) -> list[Table]:
    return [_times(name, sides), _differences(name, sides), _held_out(name, sides)]


def _times(name: str, sides: Mapping[str, Side]) -> Table:
    table = Table(f"{name}: a step", ("side", "ms", "from", "to", "CPU ms", "played", "times as fast as eager", "from", "to"))
    for who, side in sides.items():
        # The first piece touches memory and compiles, so it does not count.
        one = change(side.ms[1:])
        times = change([theirs / own for theirs, own in zip(sides[EAGER].ms[1:], side.ms[1:], strict=True)])
        cpu_ms = float(np.median(side.training.cpu_ms[1:]))
        table.rows.append((who, one.median, one.low, one.high, cpu_ms, side.training.share_played,
                           times.median, times.low, times.high))  # fmt: skip
    return table


def _differences(name: str, sides: Mapping[str, Side]) -> Table:
    """Return the table of the largest difference so far, step by step. Losses that are not numbers miss the target."""
    others = [who for who in sides if who in (OURS, COMPILED)]
    table = Table(f"{name}: losses against PyTorch eager, largest difference up to a step", ("up to step", *others, "target"))
    theirs = np.array(sides[EAGER].losses)
    for mark in sorted({*(mark for mark in MARKS if mark < theirs.size), theirs.size}):
        worst = [float(np.abs(np.array(sides[who].losses[:mark]) - theirs[:mark]).max()) for who in others]
        goal = target(worst[others.index(OURS)], CLOSE, above=False) if mark == min(COMPARED, theirs.size) else None
        table.rows.append((mark, *(f"{value:.2g}" for value in worst), goal))
    return table


def _held_out(name: str, sides: Mapping[str, Side]) -> Table:
    table = Table(f"{name}: loss on held-out text at the end", ("side", "loss", "from PyTorch eager", "target"))
    apart = {who: side.held_out - sides[EAGER].held_out for who, side in sides.items()}
    noise = max(abs(apart[who]) for who in sides if who not in (OURS, EAGER))
    for who, side in sides.items():
        goal = target(abs(apart[who]), float(f"{noise:.2g}"), above=False) if who == OURS else None
        table.rows.append((who, f"{side.held_out:.4f}", f"{apart[who]:+.4f}", goal))
    return table


def picture(found: Mapping[str, Mapping[str, Side]]) -> bytes:
    """Return a PNG of each setting: the losses of asynctile and of PyTorch eager above, differences from PyTorch below."""
    figure = Figure(figsize=(6.4 * len(found), 7.2), dpi=110, layout="constrained")
    for (name, sides), (above, below) in zip(found.items(), figure.subplots(2, len(found), squeeze=False).T, strict=True):
        for who, colour, width in ((EAGER, "#f28e2b", 3.6), (OURS, "#1f4e79", 1.2)):
            side = sides[who]
            label = f"{who}: {np.median(side.ms[1:]):.3g} ms a step, {side.held_out:.4f} on held-out text at the end"
            above.plot(*_smoothed(np.array(side.losses)), color=colour, linewidth=width, label=label)
        theirs = np.array(sides[EAGER].losses)
        for who, colour in ((COMPILED, "#bab0ac"), (OURS, "#1f4e79")):
            if who in sides:
                apart = np.maximum.accumulate(np.abs(np.array(sides[who].losses) - theirs))
                below.plot(np.arange(1, apart.size + 1), apart, color=colour, label=f"{who} against {EAGER}")
        below.plot([1, min(COMPARED, theirs.size)], [CLOSE, CLOSE], "--", color="black", linewidth=1, label="wanted at most")
        above.set(title=f"{name}: {SETTINGS[name].config.summary}", ylabel="training loss, nats a byte, smoothed")
        below.set(xlabel="step", ylabel="largest difference of losses so far", yscale="log")
        for axes in (above, below):
            axes.grid(alpha=0.25)
            axes.legend(frameon=False, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _smoothed(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return steps, and for each the mean over a window of a fiftieth of all steps around it."""
    width = max(1, losses.size // 50)
    means = np.convolve(losses, np.full(width, 1 / width), "valid")
    return np.arange(means.size) + (width + 1) / 2, means


async def main() -> None:
    options = arguments(__doc__, settings=tuple(SETTINGS), pieces=20, steps=0, no_compiled=False)
    if options.pieces <= FEWEST or unknown(options):
        raise SystemExit(f"give at least --pieces {FEWEST + 1}, for an interval, and --settings from {', '.join(SETTINGS)}")
    torch.set_num_threads(CORES)
    found, tables = {}, []
    for name in options.settings:
        found[name] = await trained(SETTINGS[name], options)
        tables += results(name, found[name])
    configuration = {
        "commit": commit(),
        **{name: SETTINGS[name].summary for name in found},
        "text": f"{len(text()):,} bytes of Python's standard library, the last {HELD_OUT:,} held out",
        "repeats": f"sides in turn, {options.pieces} pieces; medians of all but the first and their {CONFIDENCE:.0%} intervals",
    }
    publish("bench_nanogpt", __doc__, configuration, tables, write=options.write)
    if options.write:
        (RESULTS / "bench_nanogpt.png").write_bytes(picture(found))


def unknown(options: Namespace) -> bool:
    return not SETTINGS.keys() >= {*options.settings}


if __name__ == "__main__":
    asyncio.run(main())
