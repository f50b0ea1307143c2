"""How fast is a training step that needs no streaming, compared with PyTorch on the same cores?

    python bench/bench_step.py [--rounds 5] [--steps 2] [--profile] [--write]

tokens/s of asynctile on `cpu` and of the same GPT-2 in PyTorch float32 (bench/torch_step.py), eager and compiled, both with
fused AdamW and scaled_dot_product_attention, all in turn in one process. Target: the default side reaches 0.90 of the bound
that this machine's own GEMM rate gives. Each library's GEMM rate is printed as well: it shows how much of the ratio to PyTorch
is due to the BLAS, and that is why the ratio has no target.

    python bench/bench_step.py --against TREE [--starts 9] [--rounds 2]

Seconds per step of another commit's package and of this one in turn, without PyTorch (bench/against.py). Target: no loss that
the interval shows.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from argparse import Namespace
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from against import compare
from common import (
    CORES,
    Side,
    Table,
    alternate,
    arguments,
    batch,
    library_gemm_gflops,
    publish,
    rate_side,
    step_flops,
    steps,
    target,
    tile_gemm_gflops,
    trainer_on,
)

from asynctile import Engine
from asynctile.layers import GPT2Config, Trainer
from asynctile.layers.activations import kept_if
from asynctile.layers.model import model_state_of

BATCH, LENGTH = 4, 512
CONFIG = GPT2Config(n_layer=4, n_head=12, n_embd=768, block_size=LENGTH, vocab_size=50257)
MODEL = (
    f"GPT-2, n_layer {CONFIG.n_layer}, n_embd {CONFIG.n_embd}, n_head {CONFIG.n_head}, vocab {CONFIG.vocab_size}, T {LENGTH}, "
    f"B {BATCH}, float32"
)
#: The side of a user who sets no options.
DEFAULT = "asynctile"


async def profile(trainer: Trainer, tokens: Any, targets: Any) -> Table:
    """Return a table of where the worker threads spend one step: by kernel, and idle."""
    engine = trainer.model.engine
    engine.start_trace()
    report = await trainer.step(tokens, targets)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        engine.write_trace(path)
        events = json.loads(path.read_text(encoding="utf-8"))
    spent: dict[str, list[float]] = defaultdict(list)
    for event in (event for event in events if event.get("cat") == "kernel"):
        spent[event["name"]].append(event["dur"] * 1e-6)
    state = model_state_of(trainer.model)
    program = state.program("step", state.tiling.rows(BATCH, LENGTH), kept_if(trainer.recompute is True, CONFIG))
    flops: dict[str, int] = defaultdict(int)
    for operation in program.operations():
        flops[operation.kernel] += operation.flops
    total = report.step_s * CORES
    table = Table(
        f"profile of one step, {report.step_s:.3f} s on {CORES} streams, recompute={trainer.recompute}",
        ("kernel", "calls", "s", "share", "GFLOP/s a thread"),
    )
    for name, seconds in sorted(spent.items(), key=lambda item: -sum(item[1])):
        rate = flops[name] / sum(seconds) / 1e9 if flops[name] else None
        table.rows.append((name, len(seconds), sum(seconds), sum(seconds) / total, rate))
    idle = total - sum(sum(seconds) for seconds in spent.values())
    table.rows.append(("idle, waiting or in Python", "", idle, idle / total, None))
    return table


@asynccontextmanager
async def trainers() -> AsyncIterator[dict[str, Trainer]]:
    """Open trainers of one model, by the names of their sides."""
    async with Engine(device="cpu") as engine:
        keep = await trainer_on(engine, CONFIG, recompute=False)
        model, optimizer = keep.model, keep.optimizer
        yield {
            DEFAULT: Trainer(model, optimizer),
            "asynctile, activations kept": keep,
            "asynctile, recompute": Trainer(model, optimizer, recompute=True),
        }


@asynccontextmanager
async def opened(options: Namespace) -> AsyncIterator[dict[str, Side]]:
    """Yield the sides that a process of --against measures."""
    async with trainers() as found:
        yield {name: steps(trainer, *batch(CONFIG, BATCH, LENGTH), options.steps) for name, trainer in found.items()}


async def main() -> None:
    options = arguments(__doc__, {"starts": 9, "rounds": 2, "steps": 1}, rounds=5, steps=2, profile=False, no_torch=False)
    if options.against:
        await compare("bench_step", __doc__, options, "s", {}, {"model": MODEL})
    else:
        await beside_torch(options)


async def beside_torch(options: Namespace) -> None:
    from torch_step import torch, torch_gemm_gflops, torch_side

    torch.set_num_threads(CORES)
    tokens, targets = batch(CONFIG, BATCH, LENGTH)
    async with trainers() as ours:
        sides = {name: steps(trainer, tokens, targets, options.steps) for name, trainer in ours.items()}
        if not options.no_torch:
            sides["torch eager"] = torch_side(CONFIG, tokens, targets, options.steps, compiled=False)
            sides["torch compiled"] = torch_side(CONFIG, tokens, targets, options.steps, compiled=True)
        await alternate(sides, 1)  # warm up: memory is touched, kernels are compiled
        rates = {
            "tile GEMM": rate_side(tile_gemm_gflops),
            "BLAS GEMM": rate_side(library_gemm_gflops),
            "torch GEMM": rate_side(torch_gemm_gflops),
        }
        found = await alternate({**sides, **rates}, options.rounds)
        tables = [await profile(trainer, tokens, targets) for trainer in ours.values() if options.profile]
        tile = model_state_of(ours[DEFAULT].model).tiling.tile

    flops = step_flops(CONFIG, tokens.size, LENGTH)
    bound = tokens.size * found["tile GEMM"] * 1e9 / flops
    speed = {name: tokens.size / found[name] for name in sides}
    table = Table("tokens/s", ("side", "s a step", "tokens/s", "of the bound", "GFLOP/s"))
    table.rows = [(name, found[name], value, value / bound, flops / found[name] / 1e9) for name, value in speed.items()]
    table.rows.append(("bound: FLOPs at our tile GEMM rate", tokens.size / bound, bound, 1.0, found["tile GEMM"]))
    shares = Table("asynctile", ("against", "ratio", "target"))
    own = speed[DEFAULT]
    shares.rows = [(name, own / value, None) for name, value in speed.items() if name.startswith("torch")]
    shares.rows.append(("the bound", own / bound, target(own / bound, 0.90)))
    gemm = Table("GEMM rate, GFLOP/s on all cores", ("library", "GFLOP/s"))
    gemm.rows = [
        ("asynctile: tiles of 512 x 768 x 768, one BLAS thread a worker", found["tile GEMM"]),
        ("the same BLAS: 4096 square, all threads", found["BLAS GEMM"]),
        ("torch: 4096 square, all threads", found["torch GEMM"]),
    ]
    configuration = {
        "model": MODEL,
        "tile": tile,
        "FLOPs a step": f"{flops / 1e9:.1f} G = tokens (72 L d^2 + 12 L T d + 6 V d)",
        "repeats": f"median of {options.rounds} rounds of {options.steps} steps, sides in turn",
    }
    publish("bench_step", __doc__, configuration, [table, shares, gemm, *tables], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
