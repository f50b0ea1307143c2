"""Validations of a run: when they happen, on which tokens, the best model that is kept, and the stop for lack of gain.

test_resuming.py checks that a run stopped at any moment validates as one that was not.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from asynctile.callbacks import Callbacks
from asynctile.cli.options import Options
from asynctile.cli.sample import MOST_CHARACTERS
from asynctile.cli.session import Session
from asynctile.cli.validation import Validations, tokens_of
from asynctile.layers.data import ValidationBatches
from asynctile.storage.input import LINE_NBYTES
from tests.cli.conftest import Program
from tests.cli.test_refusals import refused


def validations(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "validation_loss" in line]


def made(**rules: Any) -> Validations:
    return Validations(ValidationBatches(range(10), 1, 1), **rules)  # type: ignore[arg-type]


def run_through(losses: dict[int, float], found: Validations, steps: int) -> list[tuple[int, bool]]:
    """Return (step, whether it is the best) for the validations of a run that is stopped and resumed after each of them."""
    seen = []
    for step in range(steps + 1):
        assert not found.is_over
        if found.is_due(step):
            seen.append((step, found.count(step, losses[step])))
            again = made(steps=steps, every=found.every, stop_after=found.stop_after)
            again.load_state_dict(json.loads(json.dumps(found.state_dict())))
            assert vars(again) | {"batches": None} == vars(found) | {"batches": None}
            assert not again.is_due(step)
            if found.is_over:
                break
            found = again
    return seen


def test_validations_come_when_due_keep_the_best_and_stop_the_run() -> None:
    losses = {0: 3.0, 2: 2.0, 4: 2.0, 6: float("nan"), 8: 1.5, 9: 1.7}
    assert run_through(losses, made(steps=9, every=2), 9) == [
        (0, True), (2, True), (4, False), (6, False), (8, True), (9, False)
    ]
    assert run_through(losses, made(steps=9, every=2, stop_after=2), 9) == [(0, True), (2, True), (4, False), (6, False)]
    assert run_through(losses, made(steps=9, every=2, stop_after=3), 9)[-1] == (9, False)


@pytest.mark.parametrize(("steps", "at"), [
    (3, [0, 1, 2, 3]), (25, [*range(0, 25, 2), 25]), (2000, list(range(0, 2001, 200))),
])  # fmt: skip
def test_validations_are_a_tenth_of_the_steps_apart_by_default(steps: int, at: list[int]) -> None:
    assert [step for step in range(steps + 1) if made(steps=steps).is_due(step)] == at


@pytest.mark.parametrize("damage", [
    {"step": "2"}, {"step": True}, {"step": None}, {"best_loss": "nan"}, {"best_loss": float("inf")}, {"best_step": None},
    {"best_loss": None}, {"without_gain": -1}, {"without_gain": 0.5},
])  # fmt: skip
def test_a_hand_edited_state_is_refused(damage: dict[str, Any]) -> None:
    state = {"step": 2, "best_loss": 1.5, "best_step": 2, "without_gain": 0}
    made(steps=4).load_state_dict(state)
    with pytest.raises(ValueError, match="it was damaged or edited"):
        made(steps=4).load_state_dict(state | damage)


def test_every_validation_is_a_line_on_the_same_tokens_and_the_best_model_is_kept(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    status, out, err = train("--out", run, "--lr", 0.01, "--validate-every", 2, "--validation-tokens", 70)
    assert (status, err) == (0, "")
    found = validations(run)
    assert [line["step"] for line in found] == [0, 2, 4, 6]
    assert {line["validation_tokens"] for line in found} == {96}  # three windows of 32
    assert found[-1]["validation_bits_per_byte"] == pytest.approx(found[-1]["validation_loss"] * 1.442695)
    summary = json.loads((run / "summary.json").read_text())
    best = min(found, key=lambda line: line["validation_loss"])
    assert (summary["best_step"], summary["best_validation_loss"]) == (best["step"], best["validation_loss"])
    assert summary["validation_loss"] == found[-1]["validation_loss"]
    folder = run / "checkpoints" / "best"
    assert {path.name for path in folder.iterdir()} >= {"checksums.json", "config.json", "model.safetensors", "tokenizer.json"}
    assert not (folder / "trainer.json").exists()
    assert best["step"] == 6 and (folder / "model.safetensors").read_bytes() == (
        run / "checkpoints" / "step-000006" / "model.safetensors").read_bytes()  # fmt: skip
    for said in ("validation before the first step", "validation after step 6", "perplexity", "bits per byte", "best so far"):
        assert said in out


def test_a_torn_model_names_a_checkpoint_and_not_the_best_model_to_resume_from(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_session, sessions, named = Session.run, [], []

    async def running(self: Session) -> None:
        sessions.append(self)
        await run_session(self)

    async def saved(_: Callbacks, step: int, path: Path) -> None:
        if path.name == "best":
            named.append((step, sessions[0].trainer.model.last_checkpoint))

    monkeypatch.setattr(Session, "run", running)
    monkeypatch.setattr(Callbacks, "saved", saved)
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 3, "--lr", 0.01, "--validate-every", 1, "--save-every", 2)[0] == 0
    assert named == [(1, None), (2, None), (3, str(run / "checkpoints" / "step-000002"))]


def test_a_run_without_gain_ends_says_why_and_says_so_again(train: Program, program: Program, tmp_path: Path) -> None:
    """The learning rate only spoils the model, so the best model is the initial one."""
    run = tmp_path / "run"
    words = ("--lr", 50, "--warmup", 0, "--clip-norm", 1e9, "--validate-every", 1, "--stop-after", 2)
    status, out, err = train("--out", run, *words)
    assert (status, err) == (0, "")
    why = "2 validations in a row had no loss below the "
    assert f"ending after step 2: {why}" in out and "validation loss" in out
    assert not (run / "checkpoints" / "best").exists()
    before = (run / "metrics.jsonl").read_bytes()
    status, out, _ = program("train", "--resume", "--out", run)
    assert status == 0 and f"no step is left after step 2: {why}" in out
    assert (run / "metrics.jsonl").read_bytes() == before
    assert program("train", "--resume", "--out", run, "--stop-after", 3)[0] == 0
    assert [line["step"] for line in validations(run)] == [0, 1, 2, 3]
    assert program("train", "--resume", "--out", run, "--stop-after", "none")[0] == 0
    assert [line["step"] for line in validations(run)] == [0, 1, 2, 3, 4, 5, 6]


def test_a_deleted_best_model_is_reported_and_the_next_one_is_written(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 3)[0] == 0
    shutil.rmtree(run / "checkpoints" / "best")
    status, out, err = program("train", "--resume", "--out", run, "--steps", 4)
    assert (status, err) == (0, "") and "of step 3, is no longer in" in out
    assert (run / "checkpoints" / "best" / "model.safetensors").exists()


def test_a_separate_text_can_be_used_for_validation(train: Program, text: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other.txt"
    other.write_text("another text of another kind. " * 20)
    assert train("--out", run, "--steps", 1, "--validation-data", other)[0] == 0
    assert {line["validation_tokens"] for line in validations(run)} == {(600 - 1) // 32 * 32}
    assert (run / "validation" / "tokens.bin").stat().st_size == 2 * 600
    assert (run / "sample.txt").read_text().startswith("another text of ")
    shown = (run / "tokens" / "tokens.bin").stat().st_size // 2
    assert shown == text.stat().st_size


def test_samples_are_written_at_each_validation(train: Program, program: Program, tmp_path: Path) -> None:
    run = tmp_path / "run"
    status, out, _ = train("--out", run, "--steps", 2, "--sample-tokens", 5)
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert status == 0 and [line["step"] for line in samples] == [0, 1, 2]
    assert len({line["text"][:16] for line in samples}) == 1
    parts = [part.split("\n---") for part in out.split("--- sample: start of the held-out text\n")[1:]]
    assert [prompt + words.removeprefix(" continued by the model\n") for prompt, words, *_ in parts[:3]] == [
        line["text"] for line in samples]  # fmt: skip
    assert program("train", "--resume", "--out", run, "--steps", 3, "--sample-tokens", 0)[0] == 0
    assert len((run / "samples.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(("options", "tokens"), [
    (Options(seq_len=64), 20 * 12 * 64), (Options(seq_len=1024), 16_384),
    (Options(seq_len=1024, validation_tokens=100_000), 100_000), (Options(seq_len=32, batch_size=1), 640),
])  # fmt: skip
def test_a_validation_takes_no_longer_than_some_steps_unless_more_tokens_are_requested(options: Options, tokens: int) -> None:
    assert tokens_of(options) == tokens


def test_a_kept_sample_is_a_line_that_can_be_read_again() -> None:
    assert len(json.dumps({"step": 1 << 53, "text": "\N{GRINNING FACE}" * MOST_CHARACTERS})) < LINE_NBYTES


def test_an_unusable_validation_text_is_refused_and_leaves_nothing(train: Program, tmp_path: Path, text: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("x" * 32)
    for words, said in (
        (("--validation-data", short), f"{short} has 32 tokens, less than one sequence: at least 33 are needed"),
        (("--data", short, "--validation-data", text), f"data {short} has 32 tokens, less than one sequence"),
        (("--validation-data", tmp_path / "none.txt"), "none.txt"),
        (("--validation-share", 0.0001), "--validation-share 0.0001 of the"),
        (("--validation-share", 0.9999), "leaves"),
        (("--validation-share", 0), "a number above 0 and below 1"),
        (("--validation-share", 1), "a number above 0 and below 1"),
        (("--validation-share", 0.5, "--validation-data", text), "leave one of them out"),
    ):
        refused(train("--out", tmp_path / "run", *words), said)
        assert not (tmp_path / "run").exists()
