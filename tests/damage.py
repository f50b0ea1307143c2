"""Readers of each format, and what they may say of a damaged file. For test_readers.py and fuzz_readers.py.

The files, and the damage to them, are those of scenario `inputs` of `asynctile stress` (asynctile/cli/stress/inputs). Covers
`cases`, each the files of a folder and what reads it, and `check`: a reader of a damaged folder either reads it, or raises one
short sentence that names what it was given.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from asynctile import Engine
from asynctile.cli import main
from asynctile.cli.precedence import new_options, resumed_options
from asynctile.cli.run_folder import RunFolder
from asynctile.cli.stress.inputs.damage import spoil
from asynctile.cli.stress.inputs.prey import NEWEST, Prey
from asynctile.cli.stress.inputs.site import Site
from asynctile.cli.stress.inputs.trial import End
from asynctile.cli.terminal import one_line
from asynctile.errors import AsynctileError
from asynctile.layers import Trainer
from asynctile.layers.data import Batches, open_source, open_tokens
from asynctile.layers.exchange import Pretrained
from asynctile.layers.report import number_in
from asynctile.layers.tokenizer import open_tokenizer
from asynctile.storage.checksums import CHECKSUMS, check_files

#: What comes out of a file is cut before it is said.
LONGEST_MESSAGE = 2500


@dataclass(frozen=True)
class Case:
    """files: content by name in a folder. read: what reads the folder. named: every sentence says where the file is."""

    files: dict[str, bytes]
    read: Callable[[Path], Any]
    named: bool = True


def _read_model(folder: Path) -> None:
    with Pretrained(folder):
        pass


def _read_checkpoint(folder: Path) -> None:
    async def go_on() -> None:
        async with Engine("cpu", host_memory="64MiB", watchdog=None) as engine:
            trainer = await Trainer.load(engine, folder)
            batches = Batches(np.arange(660) % 300, 2, 16, 1)
            try:
                batches.load_state_dict(trainer.data_state)
            except ValueError as error:
                raise ValueError(f"{folder}: {error}") from error
            next(batches)

    asyncio.run(go_on())


def _read_run(folder: Path) -> None:
    run = RunFolder.open(folder)
    resumed_options({}, run.read_record()["options"], folder)
    for line in run.metrics.lines():
        for name in ("loss", "tokens", "validation_loss"):
            number_in(line, name)


def _read_tokens(folder: Path) -> None:
    tokens = open_tokens(folder)
    tokens[:10].sum()


def _read_tokenizer(folder: Path) -> None:
    tokenizer = open_tokenizer(folder)
    ids = tokenizer.encode("ab ž \0 the")
    tokenizer.decode(ids)


def _read_lines(folder: Path) -> None:
    b"".join(open_source(folder / "c.jsonl").pieces())


def _read_options(folder: Path) -> None:
    new_options({"config": str(folder / "run.toml")})


@cache
def cases() -> dict[str, Case]:
    """By name. Made once: a model is trained for it."""
    with tempfile.TemporaryDirectory() as name:
        prey = Prey(Path(name), lambda words: End(status=main(words), out=b"", err=b"", seconds=0, nbytes=0))
        run = prey.original("run")
        saved = ("config.json", "model.safetensors", "optimizer.safetensors", "trainer.json")
        return {
            "model": Case(_files(prey.original("model"), *saved), _read_model),
            "shards": Case(_files(prey.original("shards"), "config.json", "model*"), _read_model),
            "checkpoint": Case(_files(run / NEWEST, *saved), _read_checkpoint),  # no checksums: damage comes further
            "checksums": Case(_files(run / NEWEST, *saved, CHECKSUMS), lambda it: check_files(it, saved, limit=1 << 26)),
            "run": Case(_files(run, "run.json", "metrics.jsonl"), _read_run, named=False),  # options as they are typed
            "tokens": Case(_files(run / "tokens", "*"), _read_tokens),
            "tokenizer": Case(_files(run, "tokenizer.json"), _read_tokenizer),
            "tokenizer of GPT-2": Case(_files(prey.original("vocabulary"), "*"), _read_tokenizer),
            "documents": Case(_files(prey.original("data"), "c.jsonl"), _read_lines),
            "options": Case(_files(prey.original("options"), "*"), _read_options, named=False),  # as well
        }  # fmt: skip


def _files(folder: Path, *patterns: str) -> dict[str, bytes]:
    """Return the content of a folder's files by name."""
    return {path.name: path.read_bytes() for pattern in patterns for path in sorted(folder.glob(pattern))}


def damaged(random: Random, file: str) -> Callable[[Path], None]:
    """Return what damages `file` of a folder, as `random` decides."""
    return lambda folder: spoil(
        Site(path=folder / file, name=file, twin=folder / file, outside=folder / "outside", chance=random)
    )


def holding(file: str, content: bytes) -> Callable[[Path], object]:
    """Return what gives `file` of a folder this content."""
    return lambda folder: (folder / file).write_bytes(content)


def check(case: Case, damage: Callable[[Path], object]) -> str | None:
    """Let a case read its folder after `damage` of it; returns what the reader said, None if it read. Raises AssertionError, or
    what should not have been raised.
    """
    folder = Path(tempfile.mkdtemp(prefix="read"))
    try:
        for name, whole in case.files.items():
            (folder / name).write_bytes(whole)
        damage(folder)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                case.read(folder)
        except (AsynctileError, ValueError, OSError) as error:
            # What is said of options reaches people through the program alone, which escapes.
            said = str(error) if case.named and not isinstance(error, OSError) else one_line(error)
            assert len(said) <= LONGEST_MESSAGE, f"{len(said)} characters: {said[:300]}"
            assert said.isprintable(), f"not to be printed: {said[:300]!r}"
            assert str(folder) in said or not case.named, f"names no file: {said[:300]}"
            return said
        return None
    finally:
        shutil.rmtree(folder)
