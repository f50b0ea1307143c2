"""Folders that a reader meets, and damage to one of their files. For test_readers.py and fuzz_readers.py.

Covers `CASES`, each the files of a whole folder and what reads it; `damaged`, which changes a file as `random` decides; and
`check`: a reader of a damaged folder either reads it, or raises one short sentence that names what it was given.
"""

from __future__ import annotations

import asyncio
import json
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
from safetensors.numpy import load, save

from asynctile import Engine
from asynctile.cli.options import Options
from asynctile.cli.precedence import new_options, resumed_options
from asynctile.cli.run_folder import RunFolder
from asynctile.cli.terminal import one_line
from asynctile.errors import AsynctileError
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from asynctile.layers.data import Batches, TextSource, open_source, open_tokens, tokenise
from asynctile.layers.exchange import Pretrained
from asynctile.layers.layout import shapes
from asynctile.layers.report import StepReport, number_in
from asynctile.layers.tokenizer import ByteTokenizer, open_tokenizer, train_bpe
from asynctile.storage.checksums import CHECKSUMS, check_files
from tests.layers.gpt2_files import END, write_gpt2_files

CONFIG = GPT2Config(n_layer=1, n_head=1, n_embd=4, block_size=8, vocab_size=11)
BATCHES = Batches(np.arange(100) % CONFIG.vocab_size, 2, CONFIG.block_size, 3)
#: What comes out of a file is cut before it is said.
LONGEST_MESSAGE = 2500
#: What a value, or a name, is replaced by: JSON that is right, or a Python's dialect of it, or neither.
WEIRD = [
    b"null", b"true", b"-1", b"0", b"1", b"2147483648", b"9223372036854775807", b"18446744073709551616", b"9" * 100, b"9" * 400,
    b"1.5", b"-0.0", b"1e308", b"1e999", b"1e-400", b"NaN", b"-Infinity", b'""', b'"x"', b'"\\u0000"', b'"\\ud800"',
    b'"\\u001b[31m"', b'"../x"', b'"/dev/zero"', b'"."', b'"V0"', b'"F32"', b'"F6_E2M3"', b'"' + b"x" * 3000 + b'"', b"[]",
    b"{}",
    b"[0, 0]", b"[1, [2, [3]]]", b'{"a": {"b": 1}}', b"[" * 100 + b"]" * 100, b"[" * 5000, b"[" + b"1," * 3000 + b"1]",
    b"01", b"'x'",
]  # fmt: skip


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
            batches = Batches(BATCHES.tokens, 2, CONFIG.block_size, 3)
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
    b"".join(open_source(folder / "a.jsonl").pieces())


def _read_options(folder: Path) -> None:
    new_options({"config": str(folder / "run.toml")})


_TOML = b"""# options of a run
lr = 3e-4
batch-size = 4
micro_batches = 2
host-memory = "512MiB"
recompute = false
schedule = "linear"
max-time = "1h30m"
epochs = 0.5
"""


@cache
def cases() -> dict[str, Case]:
    """By name. Made once: a model is trained a step for it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asyncio.run(_save(folder / "checkpoint"))
        (folder / "text").write_text("the tile moved " * 20)
        tokenise(TextSource(folder / "text"), ByteTokenizer(), folder / "tokens")
        (folder / "gpt2").mkdir()
        write_gpt2_files(folder / "gpt2", 260, {
            "added_tokens.json": {"<pad>": 261}, "special_tokens_map.json": {"pad_token": "<pad>"},
            "tokenizer_config.json": {"eos_token": END, "add_prefix_space": True},
        })  # fmt: skip
        gpt2 = _contents(folder / "gpt2")
        whole = _contents(folder / "checkpoint")
        tokens = _contents(folder / "tokens")
    loose = {name: content for name, content in whole.items() if name != CHECKSUMS}  # damage comes further without it
    model = {name: loose[name] for name in ("config.json", "model.safetensors")}
    tensors = load(model["model.safetensors"])
    parts = {"model-1.safetensors": list(tensors)[::2], "model-2.safetensors": list(tensors)[1::2]}
    index = {"metadata": {"total_size": 5}, "weight_map": {name: file for file, held in parts.items() for name in held}}
    record = {"format": 1, "options": Options(out="x").to_json(), "model": CONFIG.to_hf(), "versions": {"asynctile": "0.1.0"}}
    lines = [StepReport(step, *[1.5] * 14).as_dict() for step in range(3)]
    bpe = train_bpe(["the tile moved the tile"], 260)
    return {
        "model": Case(model, _read_model),
        "shards": Case({"config.json": model["config.json"], "model.safetensors.index.json": _json(index),
                        **{file: save({name: tensors[name] for name in held}) for file, held in parts.items()}}, _read_model),
        "checkpoint": Case(loose, _read_checkpoint),
        "checksums": Case(whole, lambda folder: check_files(folder, loose)),
        "run": Case({"run.json": _json(record), "metrics.jsonl": b"".join(map(_line, lines))}, _read_run,
                    named=False),  # options are named as they are typed
        "tokens": Case(tokens, _read_tokens),
        "tokenizer": Case({"tokenizer.json": bpe._tokenizer.to_str().encode()}, _read_tokenizer),
        "tokenizer of GPT-2": Case(gpt2, _read_tokenizer),
        "documents": Case({"a.jsonl": b"".join(_line({"text": f"the tile {n}", "n": [n]}) for n in range(3))}, _read_lines),
        "options": Case({"run.toml": _TOML}, _read_options, named=False),  # what fits together is named as it is typed
    }  # fmt: skip


async def _save(folder: Path) -> None:
    async with Engine("cpu", watchdog=None) as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, tile=16), AdamW())
        assert dict(shapes(CONFIG)) == {name: parameter.shape for name, parameter in trainer.model.parameters.items()}
        trainer.data_state = BATCHES.state_dict()
        await trainer.save(folder)


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def damaged(random: Random, name: str, content: bytes) -> bytes:
    """The content of a file, changed in one to three places: what it says, or its bytes."""
    for _ in range(random.choice((1, 1, 2, 3))):
        if random.random() < 0.3:
            content = _other_bytes(random, content)
        elif name.endswith(".safetensors"):
            content = _other_header(random, content)
        elif name.endswith(".jsonl"):
            lines = content.splitlines(keepends=True) or [b""]
            n = random.randrange(len(lines))
            lines[n] = _other_json(random, lines[n])
            content = b"".join(lines)
        else:
            content = _other_json(random, content)
    return content


def _other_header(random: Random, content: bytes) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header = _other_json(random, content[8 : 8 + length])
    said = random.choice((len(header),) * 6 + (0, 7, length, 2**40, 2**64 - 1))
    return said.to_bytes(8, "little") + header + content[8 + length :]


def _other_json(random: Random, content: bytes) -> bytes:
    """One value, name or pair changed; other bytes if it is no JSON any more."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return _other_bytes(random, content)
    mark, weird = "@weird@", random.choice(WEIRD)
    holder: Any = {"": value}
    key: Any = ""
    while isinstance(holder[key], dict | list) and holder[key] and random.random() < 0.8:
        holder = holder[key]
        key = random.choice(list(holder)) if isinstance(holder, dict) else random.randrange(len(holder))
    kind = random.choice(("value", "value", "value", "name", "less", "more"))
    if kind == "name" and isinstance(holder, dict):
        holder[mark] = holder.pop(key)
    elif kind == "less":
        del holder[key]
    elif kind == "more" and isinstance(holder[key], list):
        holder[key] = holder[key] * random.choice((2, 30, 1000)) + [mark]
    else:
        holder[key] = mark
    if isinstance(holder, dict) and "" in holder:
        value = holder[""] if kind != "less" else None
    return json.dumps(value).encode().replace(b'"@weird@"', weird)


def _other_bytes(random: Random, content: bytes) -> bytes:
    at = random.randrange(len(content) + 1)
    kind = random.choice(("flip", "cut", "put", "again", "drop"))
    if kind == "flip" and at < len(content):
        return content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]
    if kind == "cut":
        return content[:at]
    to = random.randrange(at, len(content) + 1)
    if kind == "again":
        return content[:to] + content[at:to] * random.choice((1, 2, 50)) + content[to:]
    if kind == "drop":
        return content[:at] + content[to:]
    return content[:at] + random.choice((b"\0", b"\xff", b'"', b"\\", b"[" * 200, b'{"a":' * 200, *WEIRD)) + content[at:]


def check(case: Case, name: str, content: bytes) -> str | None:
    """Read the folder of a case with `content` in place of a file; returns what the reader said, None if it read. Raises
    AssertionError, or what should not have been raised.
    """
    folder = Path(tempfile.mkdtemp(prefix="read"))
    try:
        for other, whole in case.files.items():
            (folder / other).write_bytes(content if other == name else whole)
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
