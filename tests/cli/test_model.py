"""The trainer and the steps that options lead to: the schedule, AdamW's numbers, accumulated batches."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.cli.model import new_trainer
from asynctile.cli.options import Options
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from tests.cli.conftest import Program
from tests.cli.test_interrupt import results
from tests.cli.test_train import weights
from tests.laws import law


async def trainer_of(options: Options) -> Trainer:
    async with Engine("cpu", host_memory="4MiB") as engine:
        model = await GPT2.create(engine, GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=16, vocab_size=32))
        return new_trainer(options, model)


async def test_a_trainer_follows_its_options() -> None:
    options = Options(lr=0.5, schedule="linear", min_lr=0.01, warmup=3, steps=40, beta1=0.8, beta2=0.99, eps=1e-6,
                      weight_decay=0.2, clip_norm=2.0, micro_batches=2, replicas=4, gradient_accumulation=3)  # fmt: skip
    trainer = await trainer_of(options)
    assert trainer.optimizer == AdamW(lr=0.5, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.2, warmup=3, decay_steps=40,
                                      min_lr=0.01, decay="linear")  # fmt: skip
    assert (trainer.micro_batches, trainer.replicas, trainer.clip_norm) == (6, 4, 2.0)
    assert (await trainer_of(Options(lr=0.5, schedule="constant"))).optimizer.decay_steps is None
    assert (await trainer_of(Options(lr=0.5))).optimizer == AdamW(lr=0.5, warmup=100, decay_steps=2000, min_lr=0.05)


def rates(run: Path) -> list[float]:
    return [line["lr"] for line in results(run) if "lr" in line]


@pytest.mark.parametrize(("words", "expected"), [
    ("--schedule constant --warmup 2", [0.5, 1, 1, 1, 1, 1]),
    law("--schedule linear --warmup 2 --min-lr 0.2", [0.5, 1, 0.8, 0.6, 0.4, 0.2]),
    law("--schedule linear", [1 - 0.9 * n / 6 for n in range(1, 7)]),
    ("--min-lr 0 --warmup 2", [0.5, 1, *(0.5 + 0.5 * math.cos(math.pi * n / 4) for n in (1, 2, 3)), 0]),
])  # fmt: skip
def test_the_rates_of_a_run(train: Program, tmp_path: Path, words: str, expected: list[float]) -> None:
    """Without --min-lr the rate ends at a tenth; six steps have no warm-up unless one is asked for."""
    assert train("--out", tmp_path / "run", "--lr", 1, *words.split())[0] == 0
    assert rates(tmp_path / "run") == pytest.approx(expected)


def test_the_length_of_a_schedule_stays_and_steps_beyond_it_have_its_last_rate(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--schedule", "linear", "--min-lr", 1e-4, "--beta2", 0.9)[0] == 0
    for word, value in (("--beta1", 0.5), ("--beta2", 0.95), ("--eps", 1e-5), ("--gradient-accumulation", 2)):
        status, _, err = program("train", "--resume", "--out", run, "--steps", 8, word, value)
        assert status == 2 and f"{word} {value} differs from" in err
    assert program("train", "--resume", "--out", run, "--steps", 8, "--schedule", "linear", "--beta2", 0.9)[0] == 0
    assert rates(run)[5:] == [1e-4, 1e-4, 1e-4]


@pytest.mark.parametrize(("words", "said", "expected"), [
    law("--schedule constant", "schedule constant (was linear)", [1, 1, 1, 1]),
    ("--warmup 6 --lr 3 --min-lr 1", "lr 3 (was 1), warmup 6 (was 0), min-lr 1 (was 0.1)", [2.5, 3, 2, 1]),
    law("--lr 2 --steps 10", "lr 2 (was 1), min-lr 0.2 (was 0.1), decay-steps 10 (was 8)",
        [2 - 1.8 * n / 10 for n in range(5, 11)]),
    law("--steps 10 --decay-steps 10", "decay-steps 10 (was 8)", [1 - 0.9 * n / 10 for n in range(5, 11)]),
    ("--steps 10", "", [1 - 0.9 * n / 8 for n in range(5, 9)] + [0.1, 0.1]),
])  # fmt: skip
def test_new_rates_count_from_the_next_step_and_are_told_in_a_line(
    train: Program, program: Program, tmp_path: Path, words: str, said: str, expected: list[float]
) -> None:
    """They also count where the run ends before its next checkpoint and the next resume does not name them."""
    run, options = tmp_path / "run", tmp_path / "run" / "run.json"
    assert train("--out", run, "--lr", 1, "--schedule", "linear", "--steps", 8, "--save-every", 4, "--keep", 9)[0] == 0
    shutil.rmtree(run / "checkpoints" / "step-000008")
    status, out, err = program("train", "--resume", "--out", run, *words.split())
    assert (status, err) == (0, "")
    assert [line for line in out.splitlines() if line.startswith("from step")] == (["from step 5 on: " + said] if said else [])
    assert rates(run)[4:] == pytest.approx(expected)
    remembered = json.loads(options.read_text())["options"]
    for newest in sorted((run / "checkpoints").glob("step-*"))[1:]:
        shutil.rmtree(newest)
    status, out, err = program("train", "--resume", "--out", run)
    assert (status, err) == (0, "") and json.loads(options.read_text())["options"] == remembered
    assert rates(run)[4:] == pytest.approx(expected)


def test_a_finished_run_goes_on_at_the_rate_that_is_given(train: Program, program: Program, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--lr", 1, "--schedule", "linear")[0] == 0
    assert program("train", "--resume", "--out", run, "--lr", 4, "--schedule", "constant", "--steps", 8)[0] == 0
    assert rates(run)[5:] == pytest.approx([0.1, 4, 4])


@pytest.mark.parametrize("words", [
    "--lr 0.05", law("--min-lr 2"), "--decay-steps 1 --warmup 2", law("--schedule constant --min-lr 0.5"),
])  # fmt: skip
def test_rates_that_do_not_fit_what_the_run_remembers_are_refused(
    train: Program, program: Program, tmp_path: Path, words: str
) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--lr", 1, "--min-lr", 0.1, "--steps", 2)[0] == 0
    before = (run / "run.json").read_text()
    status, _, err = program("train", "--resume", "--out", run, *words.split())
    assert status == 2 and err.count("\n") == 1 and "--" in err
    assert (run / "run.json").read_text() == before


def test_a_run_older_than_the_remembered_end_of_its_schedule_takes_it_from_its_checkpoint(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--lr", 1, "--schedule", "linear")[0] == 0
    record = json.loads((run / "run.json").read_text())
    del record["options"]["decay_steps"]
    (run / "run.json").write_text(json.dumps(record))
    status, out, _ = program("train", "--resume", "--out", run, "--steps", 8)
    assert status == 0 and "from step" not in out
    assert rates(run)[5:] == pytest.approx([0.1, 0.1, 0.1])
    assert json.loads((run / "run.json").read_text())["options"]["decay_steps"] == 6


@pytest.mark.parametrize("clip", [law(()), ("--clip-norm", 1)])
def test_accumulated_batches_give_the_bits_of_one_batch_that_is_split(train: Program, tmp_path: Path, clip: tuple[Any]) -> None:
    cut, added = tmp_path / "cut", tmp_path / "added"
    assert train("--out", cut, "--batch-size", 8, "--micro-batches", 4, *clip)[0] == 0
    assert train("--out", added, "--batch-size", 4, "--micro-batches", 2, "--gradient-accumulation", 2, *clip)[0] == 0
    for name in ("loss", "lr", "grad_norm", "tokens"):
        assert [line.get(name) for line in results(added) if "loss" in line] == [
            line.get(name) for line in results(cut) if "loss" in line
        ]
    assert weights(added, 6) == weights(cut, 6)
    assert results(added)[1]["tokens"] == 8 * 32


def test_a_plan_covers_the_whole_step(program: Program, shape: Path) -> None:
    words = ("--model", shape, "--device", "emulated", "--gflops", 100)
    added = program("plan", *words, "--batch-size", 4, "--gradient-accumulation", 3)
    assert added == program("plan", *words, "--batch-size", 12, "--micro-batches", 3)
    assert added[0] == 0 and "12 sequences of 32 tokens, in micro-batches: 3" in added[1]
    parted = program("plan", *words, "--batch-size", 12, "--replicas", 4)
    assert parted[0] == 0 and "12 sequences of 32 tokens, in replicas: 4, each in micro-batches: 1" in parted[1]


def test_epochs_become_steps_that_the_run_remembers(program: Program, text: Path, shape: Path, tmp_path: Path) -> None:
    run, words = tmp_path / "run", ("--data", text, "--model", shape, "--device", "cpu", "--batch-size", 4)
    status, said, _ = program("train", *words, "--epochs", 0.05, "--gradient-accumulation", 2, "--out", run)
    assert status == 0
    tokens = json.loads((run / "tokens" / "tokens.json").read_text())
    options = json.loads((run / "run.json").read_text())["options"]
    held_out = max(len(text.read_bytes()) // 20, 33)
    assert options["steps"] == math.ceil(0.05 * (len(text.read_bytes()) - held_out) / (2 * 4 * 32)) and tokens
    assert options["epochs"] is None and len(rates(run)) == options["steps"]
    assert f"step {options['steps']} of {options['steps']} " in said
    status, out, _ = program("train", "--resume", "--out", run, "--epochs", 0.1)
    assert status == 0 and f"steps {options['steps'] + 1} to " in out
    more = json.loads((run / "run.json").read_text())["options"]
    assert more["steps"] == math.ceil(0.1 * (len(text.read_bytes()) - held_out) / (2 * 4 * 32))
    assert len(rates(run)) == more["steps"] > options["steps"] and more["warmup"] == options["steps"] // 10


@pytest.mark.filterwarnings("always")
def test_dropout_is_mentioned_where_a_training_starts_and_nowhere_else(
    train: Program, program: Program, shape: Path, tmp_path: Path
) -> None:
    shape.write_text(json.dumps(json.loads(shape.read_text()) | {"attn_pdrop": 0.1}))
    run = tmp_path / "run"
    said = "asynctile train: the model's config asks for dropout, which is kept for saving and never applied\n"
    assert train("--out", run, "--steps", 2)[::2] == (0, said)
    assert program("train", "--resume", "--out", run, "--steps", 3)[::2] == (0, said)
    for words in (("generate", run, "--prompt", "a", "--max-new-tokens", 2), ("evaluate", run)):
        assert program(*words)[::2] == (0, "")
    config = json.loads((run / "checkpoints" / "step-000003" / "config.json").read_text())
    assert config["attn_pdrop"] == 0.1


@pytest.mark.parametrize(("words", "tokens"), [((), 2048), (("--seq-len", 2500), 2500)])
def test_sequences_of_a_long_context_are_short_unless_a_length_is_asked_for(
    program: Program, tmp_path: Path, words: tuple[Any, ...], tokens: int
) -> None:
    shape = tmp_path / "shape.json"
    shape.write_text(json.dumps(GPT2Config(n_layer=1, n_head=1, n_embd=8, block_size=9000, vocab_size=256).to_hf()))
    status, out, _ = program("plan", "--model", shape, "--batch-size", 1, *words)
    assert status == 0 and re.search(rf"batch +1 sequence of {tokens} tokens", out)
