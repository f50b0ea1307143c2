"""Does a model of 1.1 billion parameters fine-tune in 1.5 GB of RAM, and how fast beside PEFT with all of it in RAM?

    python bench/bench_lora.py [--layers 22] [--steps 4] [--rounds 3] [--length 256] [--cap 700MB] [--write]

A LLaMA of TinyLlama's shape with random weights, saved in bfloat16, and adapters of rank 16 on q_proj and v_proj. asynctile
keeps the weights as stored, `--cap` bytes of tiles in RAM and the rest in a spill folder; transformers with PEFT holds float32
weights in RAM. Each round is a process of either side in turn: seconds of a step, the median after the first one, and the most
RAM that the process had, libraries included. Both compute the same first loss, because a new adapter adds nothing. Targets:
1.5 GB, and the same first loss to 1e-5.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from common import CORES, Table, arguments, library, publish, target

from asynctile import Engine
from asynctile.layers import AdamW, LlamaConfig, LoRA, Model, Trainer

#: The most bytes of RAM, and the largest difference of first losses.
RAM_NBYTES, NEAR = 1.5e9, 1e-5
RANK, ALPHA, TARGETS = 16, 32, ("q_proj", "v_proj")
ASYNCTILE, PEFT = "asynctile", "peft"


def config_of(layers: int) -> LlamaConfig:
    return LlamaConfig(n_layer=layers, hidden_size=2048, intermediate_size=5632, num_attention_heads=32,
                       num_key_value_heads=4, vocab_size=32000, block_size=2048)  # fmt: skip


async def save(folder: Path, config: LlamaConfig) -> None:
    """Save a new model in bfloat16."""
    async with Engine("cpu") as engine:
        await (await Model.create(engine, config, seed=1)).save_pretrained(folder, dtype="bfloat16")


def data(options: Any) -> np.ndarray:
    """Return the tokens of each step, one sequence and one token more."""
    vocabulary = config_of(options.layers).vocab_size
    return np.random.default_rng(1).integers(0, vocabulary, (options.steps, 1, options.length + 1))


async def by_asynctile(options: Any, folder: Path) -> dict[str, Any]:
    with TemporaryDirectory(dir=folder.parent) as spill:
        async with Engine("cpu", host_memory=options.cap, spill=spill) as engine:
            model = await Model.from_pretrained(engine, folder, weights="stored")
            adapters = LoRA(rank=RANK, alpha=ALPHA, targets=TARGETS)
            trainer = Trainer(model, AdamW(lr=1e-4), adapters=adapters)
            reports = [await trainer.step(batch[:, :-1], batch[:, 1:]) for batch in data(options)]
    moved = reports[-1].spill_read_bytes + reports[-1].spill_written_bytes
    return {"loss": reports[0].loss, "step_s": [report.step_s for report in reports], "moved": moved}


def by_peft(options: Any, folder: Path) -> dict[str, Any]:
    torch, transformers, peft = (library(name) for name in ("torch", "transformers", "peft"))
    torch.set_num_threads(CORES)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = peft.get_peft_model(base, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS)))
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
    losses, spent = [], []
    for batch in data(options):
        began = time.perf_counter()
        ids = torch.from_numpy(batch)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        spent.append(time.perf_counter() - began)
    return {"loss": losses[0], "step_s": spent, "moved": 0}


def most_ram() -> int:
    """Return the most bytes of RAM that this process had. ru_maxrss would count those of its parent too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def measure(side: str, folder: Path, words: list[str]) -> dict[str, Any]:
    """Return what a process of its own found on one side."""
    command = [sys.executable, __file__, *words, "--side", side, "--folder", str(folder)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main() -> None:
    options = arguments(__doc__, layers=22, steps=4, rounds=3, length=256, cap="700MB", side="", folder="")
    if options.side:
        folder = Path(options.folder)
        found = asyncio.run(by_asynctile(options, folder)) if options.side == ASYNCTILE else by_peft(options, folder)
        print(json.dumps({**found, "ram": most_ram()}))
        return
    config = config_of(options.layers)
    words = [word for name in ("layers", "steps", "length", "cap") for word in (f"--{name}", str(getattr(options, name)))]
    found: dict[str, list[dict[str, Any]]] = {ASYNCTILE: [], PEFT: []}
    with TemporaryDirectory(dir=".") as root:
        folder = Path(root).absolute() / "base"
        asyncio.run(save(folder, config))
        for number in range(options.rounds):
            for side, rounds in found.items():
                rounds.append(measure(side, folder, words))
                print(f"round {number + 1} of {options.rounds}: {side} {rounds[-1]}", file=sys.stderr, flush=True)
    configuration = {
        "model": f"LLaMA, {config.summary}, {config.parameter_count:,} parameters; rank {RANK} on {', '.join(TARGETS)}",
        "work": f"one sequence of {options.length} tokens a step; {options.cap} of tiles in RAM",
        "repeats": f"{options.rounds} rounds of {options.steps} steps, a process each, in turn",
    }
    publish("bench_lora", __doc__, configuration, [results(found)], write=options.write)


def results(found: dict[str, list[dict[str, Any]]]) -> Table:
    columns = ("side", "s", "lowest", "highest", "MB over the disk", "RAM of the process, MB", "target", "first loss")
    table = Table("a step", columns)
    for side, rounds in found.items():
        seconds = [statistics.median(each["step_s"][1:]) for each in rounds]
        ram = max(each["ram"] for each in rounds)
        said = target(ram, RAM_NBYTES, above=False) if side == ASYNCTILE else ""
        table.rows.append((side, statistics.median(seconds), min(seconds), max(seconds), rounds[-1]["moved"] / 1e6, ram / 1e6,
                           said, f"{rounds[-1]['loss']:.6f}"))  # fmt: skip
    ours, theirs = (found[side] for side in (ASYNCTILE, PEFT))
    ratio = statistics.median(
        statistics.median(b["step_s"][1:]) / statistics.median(a["step_s"][1:]) for a, b in zip(ours, theirs, strict=True))
    apart = abs(ours[0]["loss"] / theirs[0]["loss"] - 1)
    table.rows.append(("speed of asynctile over PEFT", ratio, None, None, None, None, target(apart, NEAR, above=False), ""))
    return table


if __name__ == "__main__":
    main()
