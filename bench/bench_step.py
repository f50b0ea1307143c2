"""How fast is a training step that needs no streaming, next to PyTorch on the same cores?

    python bench/bench_step.py [--rounds 5] [--steps 2] [--profile] [--write]

tokens/s of asynctile on `cpu` and of the same GPT-2 in PyTorch float32 (below), eager and compiled, both with fused AdamW and
scaled_dot_product_attention, all in turn in one process. Targets: 2.2 times eager, 1.5 times compiled, 0.65 of the bound
that this machine's own GEMM rate gives. Each library's GEMM rate is printed: it tells how much of a ratio is the BLAS.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import torch
from common import (
    CORES,
    Table,
    alternate,
    arguments,
    batch,
    library_gemm_gflops,
    publish,
    step_flops,
    steps,
    target,
    tile_gemm_gflops,
    trainer_on,
)
from torch import nn
from torch.nn import functional

from asynctile import Engine
from asynctile.layers import GPT2Config, Trainer

BATCH, LENGTH = 4, 512
CONFIG = GPT2Config(n_layer=4, n_head=12, n_embd=768, block_size=LENGTH, vocab_size=50257)


class Block(nn.Module):
    """A block of the reference, as a PyTorch user would write it."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        d = config.n_embd
        self.n_head = config.n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.attn_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.c_fc, self.mlp_proj = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, length, d = x.shape
        # (B, T, d) -> (B, nh, T, hs)
        q, k, v = (
            part.view(size, length, self.n_head, -1).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(d, dim=2))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(out.transpose(1, 2).reshape(size, length, d))
        return x + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Reference(nn.Module):
    """GPT-2 with a tied head: the loss of tokens (B, T) against targets (B, T)."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=config.initializer_range)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def torch_side(tokens: Any, targets: Any, count: int, *, compiled: bool) -> Callable[[], Awaitable[float]]:
    torch.manual_seed(1)
    model = Reference(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model) if compiled else model
    inputs = torch.from_numpy(tokens).long(), torch.from_numpy(targets).long()

    async def side() -> float:
        assert torch.get_num_threads() == CORES, "torch must have every core"
        start = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            loss = run(*inputs)
            loss.backward()
            optimizer.step()
            loss.item()
        return (time.perf_counter() - start) / count

    return side


def torch_gemm_gflops(n: int = 4096) -> float:
    a, c = torch.randn(n, n), torch.empty(n, n)
    torch.mm(a, a, out=c)
    start = time.perf_counter()
    torch.mm(a, a, out=c)
    return 2e-9 * n**3 / (time.perf_counter() - start)


def rate_side(measure: Callable[[], float]) -> Callable[[], Awaitable[float]]:
    async def side() -> float:
        return measure()

    return side


async def profile(engine: Engine, trainer: Trainer, tokens: Any, targets: Any) -> Table:
    """Where the worker threads spend one step: by kernel, and idle."""
    engine.start_trace()
    report = await trainer.step(tokens, targets)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        engine.write_trace(path)
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    spent: dict[str, list[float]] = defaultdict(list)
    for event in events:
        spent[event["name"]].append(event["dur"] * 1e-6)
    program = trainer.model.program("step", BATCH, LENGTH, 1, trainer.recompute)
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


async def main() -> None:
    options = arguments(__doc__, rounds=5, steps=2, profile=False, no_torch=False)
    torch.set_num_threads(CORES)
    tokens, targets = batch(CONFIG, BATCH, LENGTH)
    async with Engine(device="cpu") as engine:
        keep = await trainer_on(engine, CONFIG, recompute=False)
        again = Trainer(keep.model, keep.optimizer, recompute=True)
        sides = {
            "asynctile": steps(keep, tokens, targets, options.steps),
            "asynctile, recompute": steps(again, tokens, targets, options.steps),
        }
        if not options.no_torch:
            sides["torch eager"] = torch_side(tokens, targets, options.steps, compiled=False)
            sides["torch compiled"] = torch_side(tokens, targets, options.steps, compiled=True)
        await alternate(sides, 1)  # memory touched, kernels compiled
        rates = {
            "tile GEMM": rate_side(tile_gemm_gflops),
            "BLAS GEMM": rate_side(library_gemm_gflops),
            "torch GEMM": rate_side(torch_gemm_gflops),
        }
        found = await alternate({**sides, **rates}, options.rounds)
        tables = [await profile(engine, trainer, tokens, targets) for trainer in (keep, again) if options.profile]

    flops = step_flops(CONFIG, tokens.size, LENGTH)
    bound = tokens.size * found["tile GEMM"] * 1e9 / flops
    speed = {name: tokens.size / found[name] for name in sides}
    table = Table("tokens/s", ("side", "s a step", "tokens/s", "of the bound", "GFLOP/s"))
    table.rows = [(name, found[name], value, value / bound, flops / found[name] / 1e9) for name, value in speed.items()]
    table.rows.append(("bound: FLOPs at our tile GEMM rate", tokens.size / bound, bound, 1.0, found["tile GEMM"]))
    shares = Table("asynctile", ("against", "ratio", "target"))
    ours = speed["asynctile"]
    for name, other, least in (("torch eager", None, 2.2), ("torch compiled", None, 1.5), ("the bound", bound, 0.65)):
        value = other or speed.get(name)
        if value:
            shares.rows.append((name, ours / value, target(ours / value, least)))
    gemm = Table("GEMM rate, GFLOP/s on all cores", ("library", "GFLOP/s"))
    gemm.rows = [
        ("asynctile: tiles of 512 x 768 x 768, one BLAS thread a worker", found["tile GEMM"]),
        ("the same BLAS: 4096 square, all threads", found["BLAS GEMM"]),
        ("torch: 4096 square, all threads", found["torch GEMM"]),
    ]
    configuration = {
        "model": f"GPT-2, n_layer {CONFIG.n_layer}, n_embd {CONFIG.n_embd}, n_head {CONFIG.n_head}, "
        f"vocab {CONFIG.vocab_size}, T {LENGTH}, B {BATCH}, float32",
        "tile": keep.model.tiling.tile,
        "FLOPs a step": f"{flops / 1e9:.1f} G = tokens (72 L d^2 + 12 L T d + 6 V d)",
        "repeats": f"median of {options.rounds} rounds of {options.steps} steps, sides in turn",
    }
    publish("bench_step", __doc__, configuration, [table, shares, gemm, *tables], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
