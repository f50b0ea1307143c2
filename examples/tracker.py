"""A training run logged to an experiment tracker with the calls of W&B: init, log, finish.

    asynctile train --callback tracker:Tracker      run in this folder: logs a training of the command line
    python examples/tracker.py                      the same from your own loop over the reports of a Trainer

`LocalRun` stands in for the tracker: it writes lines of JSON to ./tracked. With W&B, replace it by `wandb.init(project=...,
id=..., resume="allow", config=...)`; the calls are the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np

from asynctile import Engine
from asynctile.callbacks import Callback, Run
from asynctile.layers import GPT2, AdamW, Evaluation, GPT2Config, StepReport, Trainer


class LocalRun:
    """A run of the stand-in tracker.

    A second run with the same id continues the first. It drops the lines logged from `first_step` on, because those steps are
    repeated.
    """

    def __init__(self, id: str, config: Mapping[str, Any], first_step: int = 1) -> None:
        self.path = Path("tracked") / f"{id}.jsonl"
        self.path.parent.mkdir(exist_ok=True)
        lines = self.path.read_text().splitlines()[1:] if self.path.exists() else []
        kept = [line for line in lines if json.loads(line)["step"] < first_step]
        self.path.write_text("".join(line + "\n" for line in [json.dumps({"config": dict(config)}), *kept]))

    def log(self, values: Mapping[str, Any], step: int) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def finish(self, exit_code: int) -> None:
        self.log({"exit_code": exit_code}, step=1 << 30)


class Tracker(Callback):
    """A callback for --callback: one tracker run for each folder of `asynctile train`, continued when the training resumes."""

    def begin(self, run: Run) -> None:
        config = {**run.options, "model": dict(run.config), "parameters": run.parameters}
        self.run = LocalRun(run.folder.name, config, run.first_step)

    def step(self, report: StepReport) -> None:
        self.run.log(values_of(report), step=report.step)

    def validation(self, step: int, evaluation: Evaluation, is_best: bool) -> None:
        self.run.log({"validation/loss": evaluation.loss, "validation/perplexity": evaluation.perplexity}, step=step)

    def end(self, status: str) -> None:
        self.run.finish(exit_code=1 if status == "failed" else 0)


def values_of(report: StepReport) -> dict[str, Any]:
    """Return the values of a step that a tracker plots."""
    return {"train/loss": report.loss, "train/lr": report.lr, "train/grad_norm": report.grad_norm, "speed": report.tokens_per_s}


def batches(steps: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches of a repeated text, each from a later position."""
    text = np.frombuffer(b"a tracker logs a number and the step that it belongs to; " * 20, np.uint8).astype(np.int64)
    for step in range(steps):
        windows = np.stack([text[start : start + 33] for start in range(step, step + 4)])
        yield windows[:, :-1], windows[:, 1:]


async def main(steps: int = 12) -> None:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=64, block_size=32, vocab_size=256)
    run = LocalRun("own-loop", config.to_hf())
    async with Engine("cpu", host_memory="64MiB") as engine:
        trainer = Trainer(await GPT2.create(engine, config, seed=1), AdamW(lr=3e-3))
        async with aclosing(trainer.run(batches(steps))) as reports:
            async for report in reports:
                # Call a tracker that sends over the network by `await asyncio.to_thread(run.log, ...)`.
                run.log(values_of(report), step=report.step)
    run.finish(exit_code=0)
    print(f"{steps} steps are in {run.path}")


if __name__ == "__main__":
    asyncio.run(main())
