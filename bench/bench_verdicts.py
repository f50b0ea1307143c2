"""What can a PC with an RTX 4090, 64 GB of RAM and a disk of 3 GB/s train, and how fast? Simulated by `asynctile plan`.

    python bench/bench_verdicts.py [--batch 32] [--write]

Models from gpt2-xl to the limit, in bf16, on the machine rtx-4090: 57.6 GB of RAM and 1 TB of disk are left to tiles. Beside
them stand the formulas of others, in bytes for each of P parameters:

- FSDP2 with offload holds 16 P in RAM: a parameter, its gradient and two moments in float32. It has no disk. Over the link it
  carries 8 P up and 4 P down (bench_node.py).
- ZeRO-Infinity (arXiv 2104.07857, sections 3 and 4) holds 20 P. Of a step it reads and writes the optimizer's 16 P once, and
  moves 8 P of parameters and gradients in half precision: on a disk, 40 P. DeepSpeed's own estimate for RAM is 1.5 times 18 P
  (`estimate_zero3_model_states_mem_needs`).

Seconds by formula are bounds: the largest of products (four thirds of a step's, for recomputation), link and disk. Nothing ran.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from common import ROOT, Table, arguments, commit, publish, show, step_flops
from gpu_rows import config_named

from asynctile.layers import GPT2Config
from asynctile.measure.hardware import Hardware, hardware

MACHINE, PRECISION, LENGTH = "rtx-4090", "bf16", 1024
#: Widths and layers beyond gpt2-xl, heads of 128.
WIDER = ((2560, 32), (4096, 32), (5120, 40), (7168, 48), (8192, 64), (9216, 64), (10240, 64))


class Others(NamedTuple):
    """Bytes for each parameter: in RAM or, if there is one, on the disk; over the link each way; to and from the disk."""

    held: float
    up: float
    down: float
    disk: float


FSDP, INFINITY, DEEPSPEED = Others(16, 8, 4, 0), Others(20, 6, 2, 40), Others(27, 6, 2, 0)


def models() -> dict[str, GPT2Config]:
    found = {"gpt2-xl": config_named("gpt2-xl", LENGTH)}
    for width, layers in WIDER:
        found[f"{layers} x {width:,}"] = GPT2Config(n_layer=layers, n_head=width // 128, n_embd=width, block_size=LENGTH,
                                                    vocab_size=50257)  # fmt: skip
    return found


def verdict(config: GPT2Config, batch: int) -> dict[str, Any]:
    """Return what `asynctile plan --json` says of a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config.to_hf()))
        command = [sys.executable, "-m", "asynctile", "plan", "--json", "--model", str(path), "--machine", MACHINE,
                   "--precision", PRECISION, "--batch-size", str(batch), "--seq-len", str(LENGTH)]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1) or not done.stdout:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)


def bound_s(config: GPT2Config, batch: int, others: Others, there: Hardware, *, disk: bool) -> float | None:
    """Return the least seconds of a step by a formula; None if the states fit neither in RAM nor on the disk.

    disk: whether the states are there.
    """
    count = config.parameter_count
    if others.held * count > (there.disk if disk else there.ram):
        return None
    flops = step_flops(config, batch * LENGTH, LENGTH) * 4 / 3
    seconds = [flops / there.flops_per_s[PRECISION], others.up * count / there.up_per_s, others.down * count / there.down_per_s]
    return max(*seconds, others.disk * count / there.disk_per_s * disk)


def _on_disk_gb(found: dict[str, Any]) -> float:
    return (found["spill_read_bytes"] + found["spill_written_bytes"]) / 1e9


def main() -> None:
    options = arguments(__doc__, batch=32)
    there, table = hardware(MACHINE), Table("a step, simulated, and bounds by formula", (
        "model", "billions", "fits", "RAM GB", "disk GB", "s a step", "tokens/s", "bound by", "disk GB a step",
        "FSDP2 at least s", "DeepSpeed in RAM at least s", "ZeRO-Infinity on disk at least s"))  # fmt: skip
    for name, config in models().items():
        found = verdict(config, options.batch)
        fits = found["fits"]
        others = (bound_s(config, options.batch, other, there, disk=disk)
                  for other, disk in ((FSDP, False), (DEEPSPEED, False), (INFINITY, True)))  # fmt: skip
        table.rows.append((
            name, config.parameter_count / 1e9, fits, found["host_bytes"] / 1e9, found["spill_bytes"] / 1e9,
            found["step_s"] if fits else None, found["tokens_per_s"] if fits else None,
            found["bound"] if fits else found["missing"], _on_disk_gb(found), *others,
        ))  # fmt: skip
        print(" ".join(map(show, table.rows[-1])), flush=True)
    most = Table("the largest model by formula, billions of parameters", ("who", "bytes a parameter", "in RAM", "on the disk"))
    for who, held, has_disk in (("asynctile in bf16, states and copies alone", 14, True), ("FSDP2 with offload", 16, False),
                                ("DeepSpeed's estimate, parameters and optimizer in RAM", 27, False),
                                ("ZeRO-Infinity", 20, True)):  # fmt: skip
        most.rows.append((who, held, there.ram / held / 1e9, there.disk / held / 1e9 if has_disk else None))
    configuration = {"commit": commit(), "machine file": there.title, "batch": f"{options.batch} sequences of {LENGTH} tokens",
                     "nothing ran": "every figure is simulated or by formula"}  # fmt: skip
    publish("bench_verdicts", __doc__, configuration, [table, most], write=options.write)


if __name__ == "__main__":
    main()
