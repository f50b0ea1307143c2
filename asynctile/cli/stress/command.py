"""A training by `asynctile train`, forked again and again: begun, resumed, and compared with one that nobody disturbs.

Covers `TrainCommand`, for the processes that signal and kill. The forks are those of inputs/trial.py.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

from xxhash import xxh3_128_hexdigest

from asynctile.cli import main
from asynctile.cli.stress.inputs.surroundings import Conditions
from asynctile.cli.stress.inputs.trial import Bench, End

__all__ = ["TrainCommand"]

_STEPS = 8
_SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 256}
_OPTIONS = f"--replicas 2 --batch-size 2 --steps {_STEPS} --save-every 3 --validate-every 4 --validation-tokens 64"
_CPU = "--device cpu"
#: Time limit of a training, which takes a second, plus a slow step or save.
_MOST_S = 90.0


class TrainCommand:
    """A training in `folder`. took_s, outcome: of one that nobody disturbs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "run"
        self._bench = Bench(folder / "home", most_s=_MOST_S)
        text, shape = folder / "text.txt", folder / "shape.json"
        text.write_text("".join(f"line {n}: the tile moved from {n * 7 % 11} to {n * 5 % 13}\n" for n in range(400)))
        shape.write_text(json.dumps(_SHAPE))
        self._begin = f"--data {text} --model {shape} {_OPTIONS}"
        whole = self.train()
        self.took_s, self.outcome = whole.seconds, self.ended(whole)

    def train(self, place: str = _CPU, conditions: Conditions | None = None) -> End:
        """Begin the training, or resume it. place: options for where its bytes are. A run without a record begins anew."""
        if not (resumes := (self.run / "run.json").exists()):
            shutil.rmtree(self.run, ignore_errors=True)
        words = f"train --out {self.run} {place} {'--resume' if resumes else self._begin}".split()
        return self._bench.run(partial(main, words), conditions or Conditions())

    def ended(self, end: End) -> str:
        """Return the outcome of a training, and remove the run."""
        newest = self.run / "checkpoints" / f"step-{_STEPS:06}"
        found = end.words
        if end.status == 0:
            saved = b"".join((newest / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors"))
            lines = map(json.loads, (self.run / "metrics.jsonl").read_text().splitlines())
            losses = [(line["step"], line.get("loss"), line.get("validation_loss"), line.get("lr")) for line in lines]
            found = xxh3_128_hexdigest(saved + repr(losses).encode())
        shutil.rmtree(self.run, ignore_errors=True)
        return found
