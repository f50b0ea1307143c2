"""A training by `asynctile train`, forked again and again: begun, resumed, and compared with one that nobody disturbs.

Covers `TrainCommand`, for the processes that signal and kill. The forks are those of inputs/trial.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from xxhash import xxh3_128_hexdigest

from asynctile.cli import main
from asynctile.cli.stress.inputs.surroundings import Conditions
from asynctile.cli.stress.inputs.trial import Bench, End
from asynctile.storage.tensors import TensorReader

__all__ = ["TrainCommand"]

_STEPS = 8
_SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 256}
_OPTIONS = f"--replicas 4 --batch-size 4 --steps {_STEPS} --save-every 3 --validate-every 4 --validation-tokens 64"
_CPU = "--device cpu"
#: Time limit of a training, which takes a second, plus a slow step or save.
_MOST_S = 90.0


class TrainCommand:
    """A training in `folder`. disk: where its run is, if not there. took_s, outcome: of one that nobody disturbs."""

    def __init__(self, folder: Path, disk: Path | None = None) -> None:
        self.folder, self.run = folder, (disk or folder) / "run"
        self._bench = Bench(folder / "home", most_s=_MOST_S)
        text, shape = folder / "text.txt", folder / "shape.json"
        text.write_text("".join(f"line {n}: the tile moved from {n * 7 % 11} to {n * 5 % 13}\n" for n in range(400)))
        shape.write_text(json.dumps(_SHAPE))
        self._begin = f"--data {text} --model {shape} {_OPTIONS}"
        whole = self.train()
        self.took_s, self.outcome = whole.seconds, self.ended(whole)

    def train(self, place: str = _CPU, conditions: Conditions | None = None) -> End:
        """Begin the training, or resume it. place: options for where its bytes are. A run without a record begins anew."""
        return self._bench.run(partial(main, self.words(place)), conditions or Conditions())

    def begin(self, command: Callable[[], int], log: Path) -> int:
        """Fork a command whose output goes to the file `log`; return its process."""
        return self._bench.begin(command, log)

    def words(self, place: str = _CPU) -> list[str]:
        """Return the words that begin the training, or resume it."""
        if not (resumes := (self.run / "run.json").exists()):
            self.remove()
        return f"train --out {self.run} {place} {'--resume' if resumes else self._begin}".split()

    def remove(self) -> None:
        """Remove the run."""
        shutil.rmtree(self.run, ignore_errors=True)

    def ended(self, end: End) -> str:
        """Return the outcome of a training, and remove the run."""
        return self.outcome_of(end.status, end.words)

    def outcome_of(self, status: int, words: str) -> str:
        """Return the outcome of a training that ended with a status, and remove the run. words: how it ended otherwise."""
        newest = self.run / "checkpoints" / f"step-{_STEPS:06}"
        found = words
        if status == 0:
            saved = b"".join(_tensors(newest / name) for name in ("model.safetensors", "optimizer.safetensors"))
            lines = map(json.loads, (self.run / "metrics.jsonl").read_text().splitlines())
            losses = [(line["step"], line.get("loss"), line.get("validation_loss"), line.get("lr")) for line in lines]
            found = xxh3_128_hexdigest(saved + repr(losses).encode())
        self.remove()
        return found


def _tensors(file: Path) -> bytes:
    """Return the bytes of all tensors of a file, or of the shards that several nodes have written in its place."""
    with TensorReader(file) as reader:
        return b"".join(name.encode() + reader.read(name).tobytes() for name in sorted(reader.names()))
