"""Answers without a command: help, the version, the nearest command or option; nothing heavy is imported for them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from asynctile import __version__
from asynctile.cli.arguments import COMMANDS, build_parser
from asynctile.cli.option import flag, options_of
from asynctile.cli.options import Options
from asynctile.device.cuda import RESERVE_NBYTES
from tests.cli.conftest import Program
from tests.settle import HANG_S

ROOT = Path(__file__).resolve().parents[2]
#: Modules that take seconds to import, or that only commands need.
HEAVY = ("numpy", "numba", "scipy", "rich", "asyncio", "tokenizers", "psutil")


@pytest.mark.parametrize("words", ["", "--help", "--version", "train --help", "plan --help", "stress --help", "trian"])
def test_answers_without_a_command_import_nothing_heavy(words: str) -> None:
    script = f"""
import sys
from asynctile.cli import main
try:
    main({words.split()})
except SystemExit:
    pass
found = {{name.partition(".")[0] for name in sys.modules}}
print("heavy:", sorted(found & set({HEAVY})))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.stdout.splitlines()[-1] == "heavy: []", done.stdout + done.stderr


def test_without_arguments_the_help_is_printed(program: Program) -> None:
    status, out, err = program()
    assert (status, err) == (0, "")
    assert all(command in out for command in COMMANDS) and "None" not in out
    assert program("--help")[:2] == (0, out)


def test_version(program: Program) -> None:
    assert program("--version") == (0, f"asynctile {__version__}\n", "")


@pytest.mark.parametrize(("words", "said"), [
    ("trian", "unknown command 'trian'; did you mean train? (see asynctile --help)"),
    ("xyz", "unknown command 'xyz'; expected one of train, evaluate, generate, merge, plan, stress, info"),
    ("--versoin", "asynctile: unknown arguments: --versoin; did you mean --version?"),
    ("train --batchsize 3", "asynctile train: unknown arguments: --batchsize 3; did you mean --batch-size?"),
    ("plan --device-memry=3MiB", "did you mean --device-memory?"),
    ("stress --round 3", "did you mean --rounds?"),
    ("train --learning-rate 1e-4", "unknown arguments: --learning-rate 1e-4; did you mean --lr?"),
    ("train --out_dir x", "did you mean --out?"),
    ("plan --gradient-accumulation-steps 4", "did you mean --gradient-accumulation?"),
    ("train --validation x", "did you mean --validation-data or --validation-share or --validation-tokens?"),
    ("train --v 3", "unknown arguments: --v 3 (see"),
    ("train --tiel 3", "did you mean --tile?"),
    ("train --num-steps 3", "did you mean --steps?"),
    ("train --bf16", "did you mean --precision?"),
    ("train --compile", "unknown arguments: --compile (see"),
    ("train --flash 1", "unknown arguments: --flash 1 (see"),
    ("train --dropout 0.1", "unknown arguments: --dropout 0.1; dropout is not supported; use --weight-decay"),
    ("train --attn-pdrop 0.1", "dropout is not supported"),
    ("train --qlora 8", "unknown arguments: --qlora 8; of adapters only LoRA is supported"),
    ("plan --lora_rank=8", "unknown arguments: --lora_rank=8; did you mean --lora?"),
    ("train --target-modules q_proj", "did you mean --lora?"),
    ("train --num-gpus 2", "name several GPUs with --device, such as cuda:0-3, and let them share --replicas"),
    ("train --n-layer 3", "set the shape of a new model with --model"),
    ("info --wxyz", "asynctile info: unknown arguments: --wxyz (see asynctile info --help)"),
])  # fmt: skip
def test_a_mistyped_word_is_answered_with_the_nearest_one(program: Program, words: str, said: str) -> None:
    status, out, err = program(*words.split())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize(("words", "said"), [
    ("train --data a --data b", "argument --data: given twice; put several texts"),
    ("plan --validation-data=a --validation-data b", "argument --validation-data: given twice"),
    ("evaluate x --data a --data b", "asynctile evaluate: argument --data: given twice"),
    ("generate x --prompt a --seed 1 --prompt b", "asynctile generate: argument --prompt: given twice"),
])  # fmt: skip
def test_an_option_that_is_typed_twice_is_never_dropped_silently(program: Program, words: str, said: str) -> None:
    status, out, err = program(*words.split())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_other_options_may_be_repeated_and_the_last_one_counts() -> None:
    parser = build_parser("1")
    found = parser.parse_args(["generate", "x", "--prompt=--data", "--stop", "a", "--stop=--data"])
    assert (found.prompt, found.stop) == ("--data", ["a", "--data"])
    found = parser.parse_args(["train", "--steps", "1", "--steps=2", "--callback", "a:B", "--callback", "c:D"])
    assert (found.steps, found.callback) == (2, ["a:B", "c:D"])


def headings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]


def test_the_help_of_train_has_every_option_and_its_default_under_a_heading(program: Program) -> None:
    out = program("train", "--help")[1]
    words = " ".join(out.split())
    for name, entry in options_of(Options).items():
        assert f" {flag(name)} {entry.metavar}".rstrip() in words, name
    assert "{default}" not in out and f"(default: {Options.batch_size})" in words
    assert len(headings(out)) >= 6 and out.startswith("usage: asynctile train [OPTION ...]\n")


def test_the_help_says_how_much_of_each_device_is_used_without_a_cap(program: Program) -> None:
    words = " ".join(program("train", "--help")[1].split())
    assert f"on a GPU, all that is free but {RESERVE_NBYTES >> 20} MiB" in words
    assert "on emulated, half of the RAM that tiles may take" in words and "not for cpu" in words


def test_the_help_of_plan_has_options_that_change_a_plan_and_the_rest_is_accepted(program: Program) -> None:
    status, out, _ = program("plan", "--help")
    shown = {name for name in options_of(Options) if f"  {flag(name)} " in out or f"  {flag(name)}," in out}
    assert {"model", "batch_size", "device_memory", "clip_norm", "tile", "out"} <= shown
    assert not shown & {"lr", "steps", "keep", "seed", "data", "trace"} and "--resume" in out
    assert program("plan", "--lr", 0.1, "--steps", 3, "--warmup", 1, "--seed", 2, "--keep", 1)[0] == status == 0


def test_every_option_of_the_table_is_documented_and_typed() -> None:
    table = options_of(Options)
    assert [item.name for item in fields(Options)] == list(table)
    for name, entry in table.items():
        assert entry.help and entry.group and (entry.check is None) == (entry.metavar == ""), name
