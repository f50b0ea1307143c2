"""The files to be damaged, made once by the program itself, and the commands that read them.

Covers `Prey`, the folders (a small run, model folders, an adapter, texts), and the orders. Each case works on a copy. Beside
the copies is a twin of everything, which must stay as it is: links and paths lead to it, and it is checked after every case.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

from asynctile.cli.stress.inputs.trial import End
from asynctile.storage.tensors import TensorReader, TensorWriter

__all__ = ["NEWEST", "STEPS", "Order", "Prey", "draw_order", "draw_target"]

_SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 16, "vocab_size": 300}
STEPS = 4
#: Targets of damage and their share of all cases.
TARGETS = {
    "run": 0.42, "model": 0.13, "shards": 0.11, "adapter": 0.08, "data": 0.08, "vocabulary": 0.05, "options": 0.04,
    "process": 0.09,
}  # fmt: skip


@dataclass(frozen=True)
class Order:
    """A command.

    words: with placeholders for the copy, for a new folder and for undamaged files. writes: which of the first two it writes,
    if any. opens: patterns of the files that it reads in the copy; damage elsewhere says little. checks: files of a run's
    newest checkpoint whose checksums it verifies.
    """

    words: str
    opens: tuple[str, ...]
    writes: str | None = None
    checks: tuple[str, ...] = ()

    def looks_at(self, path: PurePath) -> bool:
        """Return whether the command reads a path of the copy."""
        return any(fnmatch(path.as_posix(), pattern) for pattern in self.opens)


_LOADED = ("config.json", "model.safetensors")
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
NEWEST = f"checkpoints/step-{STEPS:06}"
_RUN = (".", "run.json", "checkpoints")
_SAVED = (NEWEST, f"{NEWEST}/checksums.json", *(f"{NEWEST}/{name}" for name in _LOADED))
_TRAIN = "train --device cpu --batch-size 2 --steps"
_GENERATE = "--device cpu --prompt a --max-new-tokens 2"
_EVALUATE = "--device cpu --validation-tokens 32"
_END, _PAD = "<|endoftext|>", "<pad>"
_TOML = """# options of a run
lr = 3e-4
batch-size = 4
micro_batches = 2
host-memory = "512MiB"
recompute = false
schedule = "linear"
max-time = "1h30m"
epochs = 0.5
"""
#: The orders of each target; one that is listed twice is drawn twice as often.
ORDERS: dict[str, tuple[Order, ...]] = {
    "run": (
        *(3 * (Order(f"train --resume --out {{it}} --steps {STEPS + 1}", ("*",), "it",
                     (*_LOADED, "optimizer.safetensors", "trainer.json")),)),
        *(2 * (Order(f"generate {{it}} {_GENERATE}", (*_RUN, *_SAVED, "tokenizer.json"), checks=_LOADED),)),
        Order(f"generate {{it}}/{NEWEST} --tokenizer bytes {_GENERATE}", _SAVED, checks=_LOADED),
        Order(f"evaluate {{it}} {_EVALUATE}", (*_RUN, *_SAVED, "tokenizer.json", "tokens*"), checks=_LOADED),
        Order(f"evaluate {{it}}/checkpoints/best {_EVALUATE}", ("checkpoints/best*", "run.json", "tokens*")),
        Order("plan --resume --out {it}", (*_RUN, NEWEST)),
    ),
    "model": (
        Order(f"generate {{it}} {_GENERATE}", ("*",)),
        Order("plan --model {it}", (".", "config.json", "tokenizer.json")),
        Order(f"{_TRAIN} 1 --model {{it}} --data {{text}} --out {{new}}", ("*",), "new"),
    ),
    "adapter": (
        *(2 * (Order(f"generate {{it}} {_GENERATE}", ("*",)),)),
        Order(f"generate {{model}} --adapter {{it}} {_GENERATE}", (".", *_ADAPTER, "tokenizer.json")),
        Order("merge {model} {it} {new}", (".", *_ADAPTER), "new"),
    ),
    "data": (
        Order(f"{_TRAIN} 1 --model {{shape}} --data {{it}} --out {{new}}", ("*",), "new"),
        Order(f"{_TRAIN} 1 --model {{shape}} --tokenizer bpe:300 --data {{it}} --out {{new}}", ("*",), "new"),
        Order(f"{_TRAIN} 1 --model {{shape}} --data {{text}} --validation-data {{it}} --out {{new}}", ("*",), "new"),
    ),
    "vocabulary": (
        Order(f"{_TRAIN} 1 --model {{shape}} --tokenizer {{it}} --data {{text}} --out {{new}}", ("*",), "new"),
        Order("plan --model {shape} --tokenizer {it}", ("*",)),
    ),
    "options": (
        Order(f"{_TRAIN} 1 --config {{it}}/run.toml --model {{shape}} --data {{text}} --out {{new}}", ("*",), "new"),
        Order("plan --config {it}/run.toml --model {shape}", ("*",)),
    ),
    "process": (
        Order("train --resume --out {it} --steps 40 --save-every 10", (), "it"),
        Order(f"{_TRAIN} 40 --save-every 10 --model {{shape}} --data {{text}} --out {{new}}", (), "new"),
        Order(f"generate {{it}} {_GENERATE}", ()),
    ),
}  # fmt: skip
ORDERS["shards"] = ORDERS["model"]


class Prey:
    """The files, in `folder`, which exists. run_command: runs `asynctile` with these words to its end."""

    def __init__(self, folder: Path, run_command: Callable[[list[str]], End]) -> None:
        self.folder = folder
        self.outside = folder / "outside"
        self._whole = folder / "whole"
        self._make(run_command)
        self.lay_out()

    @property
    def text(self) -> Path:
        return self._whole / "data" / "a.txt"

    @property
    def shape(self) -> Path:
        return self._whole / "shape.json"

    def original(self, target: str) -> Path:
        return self._whole / ("run" if target == "process" else target)

    def lay_out(self) -> None:
        """Make the twin outside as it was at first."""
        if self.outside.exists():
            shutil.rmtree(self.outside)
        shutil.copytree(self._whole, self.outside)
        (self.outside / "secret.txt").write_text("nobody writes here\n")
        (self.outside / "folder").mkdir()
        (self.outside / "folder" / "kept.txt").write_text("nobody removes this\n")
        os.mkfifo(self.outside / "pipe")

    def _make(self, run_command: Callable[[list[str]], End]) -> None:
        whole = self._whole
        (whole / "data" / "inner").mkdir(parents=True)
        lines = [f"line {n}: the tile moved from {n * 7 % 11} to {n * 5 % 13}\n" for n in range(60)]
        self.text.write_text("".join(lines))
        (whole / "data" / "inner" / "b.txt").write_text("".join(lines[:20]))
        (whole / "data" / "c.jsonl").write_text("".join(json.dumps({"text": line, "n": [3]}) + "\n" for line in lines[:3]))
        (whole / "options").mkdir()
        (whole / "options" / "run.toml").write_text(_TOML)
        self.shape.write_text(json.dumps(_SHAPE))
        options = f"{STEPS} --save-every 2 --model {self.shape} --tokenizer bpe:300 --data {self.text}"
        _train(run_command, options, whole / "run")
        newest = whole / "run" / "checkpoints" / f"step-{STEPS:06}"
        for name in ("model", "shards"):
            (whole / name).mkdir()
            shutil.copy(newest / "config.json", whole / name)
            shutil.copy(whole / "run" / "tokenizer.json", whole / name)
        shutil.copy(newest / "model.safetensors", whole / "model")
        _cut(newest / "model.safetensors", whole / "shards")
        (whole / "adapter").mkdir()
        with TemporaryDirectory(dir=self.folder) as name:
            _train(run_command, f"1 --model {whole / 'model'} --lora r=2 --data {self.text}", Path(name) / "run")
            for file in _ADAPTER:
                shutil.copy(Path(name) / "run" / "checkpoints" / "step-000001" / file, whole / "adapter")
        shutil.copy(whole / "run" / "tokenizer.json", whole / "adapter")
        (whole / "vocabulary").mkdir()
        _write_vocabulary(whole / "run" / "tokenizer.json", whole / "vocabulary")


def draw_target(chance: random.Random) -> str:
    return chance.choices(list(TARGETS), list(TARGETS.values()))[0]


def draw_order(chance: random.Random, target: str) -> Order:
    return chance.choice(ORDERS[target])


def _train(run_command: Callable[[list[str]], End], words: str, run: Path) -> None:
    """Run an undisturbed training. words: its options, the number of steps first. run: its new folder."""
    end = run_command([*_TRAIN.split(), *words.split(), "--out", str(run)])
    if end.status:
        raise RuntimeError(f"an undisturbed training ended with status {end.status}: {end.err.decode()}")


def _write_vocabulary(tokenizer: Path, folder: Path) -> None:
    """Write a tokenizer in GPT-2's format, in five files. Its last two tokens become special ones."""
    model = json.loads(tokenizer.read_bytes())["model"]
    plain = dict(sorted(model["vocab"].items(), key=lambda item: item[1])[:-2])
    files = {
        "vocab.json": plain | {_END: len(plain)}, "added_tokens.json": {_PAD: len(plain) + 1},
        "special_tokens_map.json": {"pad_token": _PAD}, "tokenizer_config.json": {"eos_token": _END, "add_prefix_space": True},
    }  # fmt: skip
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    (folder / "merges.txt").write_text("\n".join(("#version: 0.2", *map(" ".join, model["merges"][:-2]), "")))


def _cut(weights: Path, folder: Path) -> None:
    """Write weights as two shards and their index."""
    weight_map: dict[str, str] = {}
    with TensorReader(weights) as source:
        names = source.names()
        for number, part in enumerate((names[::2], names[1::2])):
            file = f"model-{number + 1:05}-of-00002.safetensors"
            with TensorWriter(folder / file, {name: ("float32", source.shape(name)) for name in part}) as writer:
                for name in part:
                    writer.write(name, (), source.read(name))
            weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
