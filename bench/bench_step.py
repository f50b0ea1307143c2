"""How fast is a training step that needs no streaming, compared with PyTorch on the same cores?

    python bench/bench_step.py [--family gpt2] [--rounds 5] [--steps 2] [--profile] [--write]

tokens/s of asynctile on `cpu` and of the same model in PyTorch float32 (bench/torch_step.py), eager and compiled, both with
fused AdamW and scaled_dot_product_attention, all in turn in one process. In PyTorch a GPT-2 is the one that its users write
down, and beside it that of transformers; another family is that of transformers. Target: the default side reaches 0.90 of the
bound that this machine's own GEMM rate gives. Each library's GEMM rate is printed as well: it shows how much of the ratio to
PyTorch is due to the BLAS, and that is why the ratio has no target.

    python bench/bench_step.py --against TREE [--family gpt2] [--starts 9] [--rounds 2]

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
from asynctile.layers.architectures import ARCHITECTURES
from asynctile.layers.config import Config
from asynctile.layers.model import model_state_of

BATCH, LENGTH = 4, 512
LAYERS, WIDTH, HEADS, VOCAB = 4, 768, 12, 50257
GPT2 = "gpt2"


def config_of(family: str) -> Config:
    """Return a model of this family, with the layers, width and vocabulary that all have here."""
    if family == GPT2:
        return GPT2Config(n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, block_size=LENGTH, vocab_size=VOCAB)
    return ARCHITECTURES[family].config(
        n_layer=LAYERS, hidden_size=WIDTH, intermediate_size=2048, num_attention_heads=HEADS, num_key_value_heads=HEADS // 4,
        block_size=LENGTH, vocab_size=VOCAB, tie_word_embeddings=True)  # fmt: skip


def model_of(config: Config) -> str:
    return f"{config.model_type}, {config.summary}, T {LENGTH}, B {BATCH}, float32"


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
    kept = kept_if(trainer.recompute is True, trainer.model.config)
    program = state.program("step", state.tiling.rows(BATCH, LENGTH), kept)
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
async def trainers(config: Config) -> AsyncIterator[dict[str, Trainer]]:
    """Open trainers of one model, by the names of their sides."""
    async with Engine(device="cpu") as engine:
        keep = await trainer_on(engine, config, recompute=False)
        model, optimizer = keep.model, keep.optimizer
        yield {
            DEFAULT: Trainer(model, optimizer),
            "asynctile, activations kept": keep,
            "asynctile, recompute": Trainer(model, optimizer, recompute=True),
        }


@asynccontextmanager
async def opened(options: Namespace) -> AsyncIterator[dict[str, Side]]:
    """Yield the sides that a process of --against measures."""
    config = config_of(options.family)
    async with trainers(config) as found:
        yield {name: steps(trainer, *batch(config, BATCH, LENGTH), options.steps) for name, trainer in found.items()}


async def main() -> None:
    options = arguments(__doc__, {"starts": 9, "rounds": 2, "steps": 1}, family=GPT2, rounds=5, steps=2, profile=False,
                        no_torch=False)  # fmt: skip
    if options.family not in ARCHITECTURES:
        raise SystemExit(f"--family {options.family} is unknown; choose {', '.join(ARCHITECTURES)}")
    if options.against:
        await compare("bench_step", __doc__, options, "s", {}, {"model": model_of(config_of(options.family))})
    else:
        await beside_torch(options)


def torch_sides(config: Config, tokens: Any, targets: Any, count: int) -> dict[str, Side]:
    """Return the sides of PyTorch. A GPT-2 has both kinds, so that its ratio to transformers can be told too."""
    from torch_step import Reference, Theirs, torch_side

    kinds: dict[str, Any] = {"torch": Reference} if isinstance(config, GPT2Config) else {}
    return {
        f"{name} {how}": torch_side(kind, config, tokens, targets, count, compiled=how == "compiled")
        for name, kind in {**kinds, "transformers": Theirs}.items()
        for how in ("eager", "compiled")
    }


async def beside_torch(options: Namespace) -> None:
    from torch_step import torch, torch_gemm_gflops

    torch.set_num_threads(CORES)
    config = config_of(options.family)
    tokens, targets = batch(config, BATCH, LENGTH)
    async with trainers(config) as ours:
        sides = {name: steps(trainer, tokens, targets, options.steps) for name, trainer in ours.items()}
        if not options.no_torch:
            sides |= torch_sides(config, tokens, targets, options.steps)
        await alternate(sides, 1)  # warm up: memory is touched, kernels are compiled
        rates = {
            "tile GEMM": rate_side(tile_gemm_gflops),
            "BLAS GEMM": rate_side(library_gemm_gflops),
            "torch GEMM": rate_side(torch_gemm_gflops),
        }
        found = await alternate({**sides, **rates}, options.rounds)
        tables = [await profile(trainer, tokens, targets) for trainer in ours.values() if options.profile]
        tile = model_state_of(ours[DEFAULT].model).tiling.tile

    flops = step_flops(config, tokens.size, LENGTH)
    bound = tokens.size * found["tile GEMM"] * 1e9 / flops
    speed = {name: tokens.size / found[name] for name in sides}
    table = Table("tokens/s", ("side", "s a step", "tokens/s", "of the bound", "GFLOP/s"))
    table.rows = [(name, found[name], value, value / bound, flops / found[name] / 1e9) for name, value in speed.items()]
    table.rows.append(("bound: FLOPs at our tile GEMM rate", tokens.size / bound, bound, 1.0, found["tile GEMM"]))
    shares = Table("asynctile", ("against", "ratio", "target"))
    own = speed[DEFAULT]
    shares.rows = [(name, own / value, None) for name, value in speed.items() if name not in ours]
    shares.rows.append(("the bound", own / bound, target(own / bound, 0.90)))
    gemm = Table("GEMM rate, GFLOP/s on all cores", ("library", "GFLOP/s"))
    gemm.rows = [
        ("asynctile: tiles of 512 x 768 x 768, one BLAS thread a worker", found["tile GEMM"]),
        ("the same BLAS: 4096 square, all threads", found["BLAS GEMM"]),
        ("torch: 4096 square, all threads", found["torch GEMM"]),
    ]
    configuration = {
        "model": model_of(config),
        "tile": tile,
        "FLOPs a step": f"{flops / 1e9:.1f} G: 6 a matrix element and token, 12 a layer, column, position and token",
        "repeats": f"median of {options.rounds} rounds of {options.steps} steps, sides in turn",
    }
    name = "bench_step" if options.family == GPT2 else f"bench_step_{options.family}"
    publish(name, __doc__, configuration, [table, shares, gemm, *tables], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
