"""`asynctile generate`: settings that reach the model, the end of its text, and values that are refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.cli import generate as command
from asynctile.cli.terminal import printable
from asynctile.layers import GPT2, GPT2Config
from asynctile.layers.tokenizer import ByteTokenizer
from tests.cli.conftest import Program
from tests.cli.test_refusals import refused


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """The folder of a model of bytes."""
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=32, vocab_size=256), seed=3)
        await model.save_pretrained(tmp_path / "model")
    ByteTokenizer().save(tmp_path / "model")
    return tmp_path / "model"


class Writer:
    """A stand-in for a model's `generate`: it writes these tokens and notes its arguments and whether it was closed."""

    def __init__(self, tokens: bytes) -> None:
        self.tokens = tokens
        self.written = 0
        self.asked: dict[str, Any] = {}
        self.prompt: list[int] = []
        self.is_closed = False

    async def generate(self, prompt_ids: Any, **asked: Any) -> AsyncGenerator[int]:
        self.prompt, self.asked = list(prompt_ids), asked
        try:
            for token in self.tokens:
                await asyncio.sleep(0)
                self.written += 1
                yield token
        finally:
            self.is_closed = True


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Any:
    def replace(text: str | bytes) -> Writer:
        writer = Writer(text.encode() if isinstance(text, str) else text)
        monkeypatch.setattr(GPT2, "generate", lambda _, *args, **more: writer.generate(*args, **more))
        return writer

    return replace


def test_every_setting_reaches_the_model(program: Program, folder: Path, writes: Any) -> None:
    writer = writes("!")
    words = ("--temperature", 0.7, "--top-k", 9, "--top-p", 0.8, "--min-p", 0.1, "--repetition-penalty", 1.3, "--seed", 5,
             "--max-new-tokens", 4)  # fmt: skip
    assert program("generate", folder, "--prompt", "ab", *words) == (0, "ab!\n", "")
    assert writer.prompt == [97, 98]
    assert writer.asked == {"max_new_tokens": 4, "temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.1,
                            "repetition_penalty": 1.3, "seed": 5}  # fmt: skip
    program("generate", folder, "--prompt", "ab")
    assert writer.asked == {"max_new_tokens": 200, "temperature": 0.8, "top_k": 50, "top_p": None, "min_p": None,
                            "repetition_penalty": None, "seed": 1}  # fmt: skip


def test_the_printed_text_is_the_models_text(program: Program, folder: Path) -> None:
    """The cases take the likeliest tokens; a penalty gives other ones."""

    async def text(**settings: Any) -> str:
        async with Engine("cpu") as engine:
            model = await GPT2.from_pretrained(engine, folder)
            tokens = model.generate(list(b"ab"), max_new_tokens=12, temperature=0, **settings)
            return printable(ByteTokenizer().decode([id async for id in tokens]))

    words = ("generate", folder, "--prompt", "ab", "--max-new-tokens", 12, "--temperature", 0)
    plain, penalised = asyncio.run(text()), asyncio.run(text(repetition_penalty=1.5))
    assert plain != penalised
    assert program(*words) == (0, f"ab{plain}\n", "")
    assert program(*words, "--repetition-penalty", 1.5) == (0, f"ab{penalised}\n", "")


@pytest.mark.parametrize(
    ("stops", "shown", "written"),
    [
        ((), "a žluť, END of it\ufffd", 21),
        (("END",), "a žluť, ", 13),
        (("none", "ť"), "a žlu", 8),
        (("\ufffd",), "a žluť, END of it", 21),
        (("it",), "a žluť, END of ", 19),
    ],
)
def test_a_text_ends_before_a_stop_string_and_no_further_token_is_requested(
    stops: tuple[str, ...], shown: str, written: int, program: Program, folder: Path, writes: Any
) -> None:
    writer = writes("a žluť, END of it".encode() + b"\xe2\x82")
    words = [word for stop in stops for word in ("--stop", stop)]
    assert program("generate", folder, "--prompt", "Once: ", *words) == (0, f"Once: {shown}\n", "")
    assert writer.is_closed and writer.written == written


def test_a_text_ends_at_a_token_that_the_models_generation_config_names(program: Program, folder: Path, writes: Any) -> None:
    """The folder's checksums are those of another file; a model without them is read unchecked."""
    (folder / "checksums.json").unlink()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ord("!"), ord("?")]}))
    for text, end in (("one? two", 4), ("a!", 2), ("none", 4)):
        writer = writes(text)
        assert program("generate", folder, "--prompt", "Once: ") == (0, f"Once: {text.partition('?')[0].strip('!')}\n", "")
        assert writer.is_closed and writer.written == end
    (folder / "generation_config.json").write_text('{"eos_token_id": "a"}')
    refused(program("generate", folder, "--prompt", "a"), f"of {folder}: generation_config.json says eos_token_id 'a'",
            command="generate")  # fmt: skip


def test_an_interrupted_text_ends_its_line(
    program: Program, folder: Path, writes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writes("abc" * 1000)
    say, said = command.say, []

    def interrupted(text: str) -> None:
        said.append(text)
        if len(said) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        say(text)

    monkeypatch.setattr(command, "say", interrupted)
    status, out, err = program("generate", folder, "--prompt", ">")
    assert (status, err) == (130, "")
    assert out.startswith(">abc") and out.endswith("\n") and len(out) < 100
    assert writer.is_closed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--top-p", 1.5), "--top-p is 1.5, expected a number above 0, at most 1"),
        (("--top-p", 0), "--top-p"),
        (("--min-p", 1.1), "--min-p is 1.1, expected a number from 0 to 1"),
        (("--repetition-penalty", "nan"), "--repetition-penalty"),
        (("--repetition-penalty", "1e39"), "--repetition-penalty is 1e+39, expected"),
        (("--stop", ""), "stop has '' of 0 characters"),
        (("--stop", "a" * 2000), "of 2,000 characters, expected a string of 1 to 1,000"),
        (("--stop", "a") * 65, "stop has 65 strings, expected at most 64"),
    ],
)
def test_invalid_settings_are_refused_before_any_file_is_looked_for(
    words: tuple[Any, ...], sentence: str, program: Program, tmp_path: Path
) -> None:
    refused(program("generate", tmp_path / "none", "--prompt", "a", *words), sentence, command="generate")


def test_a_tokenizer_that_does_not_fit_is_reported_before_the_text_begins(
    program: Program, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "words.json"

    def tokens(model: dict[str, Any]) -> None:
        path.write_text(json.dumps({"version": "1.0", "model": model}))

    tokens({"type": "WordLevel", "vocab": {"a": 0, "b": 256}, "unk_token": "a"})
    status, out, err = program("generate", folder, "--prompt", "a", "--tokenizer", path)
    refused((status, out, err), "the tokenizer has 257 tokens, but the model of", "only 256", command="generate")
    assert out == ""
    tokens({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []})
    words = ("--prompt", "zz", "--tokenizer", path)
    refused(program("generate", folder, *words), "turns --prompt 'zz' into no tokens", command="generate")
