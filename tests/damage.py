"""Readers of each format, and the messages they may give for a damaged file. For test_readers.py and fuzz_readers.py.

The files and their damage are those of scenario `inputs` of `asynctile stress` (asynctile/cli/stress/inputs). `cases` returns
the files of a folder, each with its reader. `check` asserts that a reader of a damaged folder either reads it or raises one
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
from asynctile.layers import GPT2Config, Trainer
from asynctile.layers.adapter_files import AdapterFiles, base_named_in
from asynctile.layers.data import Batches
from asynctile.layers.data_source import open_source, reopen
from asynctile.layers.examples import Example, ExampleFile, keep_examples
from asynctile.layers.exchange import Pretrained
from asynctile.layers.report import number_in
from asynctile.layers.text import TextSource
from asynctile.layers.tokenizer import ByteTokenizer, open_tokenizer
from asynctile.layers.tokens import open_tokens
from asynctile.storage.checksums import CHECKSUMS, check_files
from tests.layers.adapters import layers_of, tensors_of, write

#: The base of the adapter.
BASE = GPT2Config(n_layer=1, n_head=1, n_embd=4, block_size=3, vocab_size=5)
#: Text from a file is cut before it goes into a message.
LONGEST_MESSAGE = 2500


@dataclass(frozen=True)
class Case:
    """The files of a folder and their reader.

    files: content by name. read: reads the folder. named: every message says where the file is.
    """

    files: dict[str, bytes]
    read: Callable[[Path], Any]
    named: bool = True


def _read_model(folder: Path) -> None:
    with Pretrained(folder):
        pass


def _read_adapter(folder: Path) -> None:
    base_named_in(folder)
    with AdapterFiles(folder, BASE) as found:
        for layer in layers_of(BASE, "c_attn"):
            found.piece(layer, "lora_A", ())


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


def _read_examples(folder: Path) -> None:
    found = reopen(folder)
    assert isinstance(found, ExampleFile)
    for index in range(min(9, len(found))):
        assert 2 <= len(found[index].ids) <= found.seq_len + 1


def _examples(folder: Path, text: Path) -> Path:
    """Write three examples into `folder`, and return it."""
    ids = np.arange(20, dtype=np.uint16)
    given = [Example(ids[:length], ids[:length] > 1) for length in (5, 20, 9)]
    keep_examples(TextSource(text), ByteTokenizer(), folder, {"format": "plain"}, 30, given)
    return folder


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
    """Return the cases by name. Cached, because they need a trained model."""
    with tempfile.TemporaryDirectory() as name:
        prey = Prey(Path(name), lambda words: End(status=main(words), out=b"", err=b"", seconds=0, nbytes=0))
        run = prey.original("run")
        adapter = write(Path(name) / "adapter", tensors_of(BASE, 2, "c_attn"), 2, "c_attn")
        saved = ("config.json", "model.safetensors", "optimizer.safetensors", "trainer.json")
        return {
            "model": Case(_files(prey.original("model"), *saved), _read_model),
            "shards": Case(_files(prey.original("shards"), "config.json", "model*"), _read_model),
            "adapter": Case(_files(adapter, "*"), _read_adapter),
            "checkpoint": Case(_files(run / NEWEST, *saved), _read_checkpoint),  # no checksums: damage gets further
            "checksums": Case(_files(run / NEWEST, *saved, CHECKSUMS), lambda it: check_files(it, saved, limit=1 << 26)),
            "run": Case(_files(run, "run.json", "metrics.jsonl"), _read_run, named=False),  # options as typed
            "tokens": Case(_files(run / "tokens", "*"), _read_tokens),
            "examples": Case(_files(_examples(Path(name, "examples"), prey.original("data") / "c.jsonl"), "*"), _read_examples),
            "tokenizer": Case(_files(run, "tokenizer.json"), _read_tokenizer),
            "tokenizer of GPT-2": Case(_files(prey.original("vocabulary"), "*"), _read_tokenizer),
            "documents": Case(_files(prey.original("data"), "c.jsonl"), _read_lines),
            "options": Case(_files(prey.original("options"), "*"), _read_options, named=False),  # options as typed
        }  # fmt: skip


def _files(folder: Path, *patterns: str) -> dict[str, bytes]:
    """Return the content of a folder's files by name."""
    return {path.name: path.read_bytes() for pattern in patterns for path in sorted(folder.glob(pattern))}


def damaged(random: Random, file: str) -> Callable[[Path], None]:
    """Return a function that damages `file` of a folder, as `random` decides."""
    return lambda folder: spoil(
        Site(path=folder / file, name=file, twin=folder / file, outside=folder / "outside", chance=random)
    )


def holding(file: str, content: bytes) -> Callable[[Path], object]:
    """Return a function that gives `file` of a folder this content."""
    return lambda folder: (folder / file).write_bytes(content)


def check(case: Case, damage: Callable[[Path], object]) -> str | None:
    """Let a case read its folder after `damage`; return the reader's message, or None if it read the folder.

    Raises AssertionError for a message that breaks the rules, and passes on any exception that a reader must not raise.
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
            # Messages about options reach people only through the program, which escapes them.
            said = str(error) if case.named and not isinstance(error, OSError) else one_line(error)
            assert len(said) <= LONGEST_MESSAGE, f"{len(said)} characters: {said[:300]}"
            assert said.isprintable(), f"not to be printed: {said[:300]!r}"
            assert str(folder) in said or not case.named, f"names no file: {said[:300]}"
            return said
        return None
    finally:
        shutil.rmtree(folder)
