"""`asynctile evaluate`: the loss that the run itself found, and that of any other text."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from asynctile.cli.interrupt import Interrupt
from asynctile.layers.byte_tokenizer import ByteTokenizer
from asynctile.layers.data import ValidationBatches
from tests.cli.conftest import Program
from tests.cli.test_links import everything
from tests.cli.test_refusals import refused as refused_train
from tests.settle import HANG_S


def refused(result: tuple[int, str, str], *said: str) -> None:
    refused_train(result, *said, command="evaluate")


@pytest.fixture
def run(train: Program, tmp_path: Path) -> Path:
    assert train("--out", tmp_path / "run", "--steps", 3, "--lr", 1, "--warmup", 3, "--validate-every", 1,
                 "--validation-tokens", 300)[0] == 0  # fmt: skip
    return tmp_path / "run"


def figures(result: tuple[int, str, str]) -> dict[str, str]:
    status, out, err = result
    assert (status, err) == (0, "")
    return {line[:15].strip(): line[15:].split()[0] for line in out.splitlines()}


def test_a_run_and_its_best_model_keep_the_losses_of_the_run_and_nothing_is_changed(
    program: Program, run: Path, tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line for line in lines if "validation_loss" in line}
    summary = json.loads((run / "summary.json").read_text())
    assert summary["best_step"] not in (0, 3)
    before = everything(tmp_path)
    for name, step in ((".", 3), ("checkpoints/step-000003", 3), ("checkpoints/best", summary["best_step"])):
        found = figures(program("evaluate", run / name, "--device", "cpu"))
        assert float(found["loss"]) == pytest.approx(losses[step]["validation_loss"], abs=1e-6)
        assert float(found["perplexity"]) == pytest.approx(losses[step]["validation_perplexity"], abs=1e-5)
        assert float(found["bits per byte"]) == pytest.approx(losses[step]["validation_bits_per_byte"], abs=1e-6)
        assert int(found["tokens"]) == losses[step]["validation_tokens"]
    assert everything(tmp_path) == before


def test_any_text_can_be_named_and_all_of_it_counts(program: Program, run: Path, text: Path, tmp_path: Path) -> None:
    words = ("evaluate", run / "checkpoints" / "best", "--device", "cpu", "--data", text)
    before = everything(tmp_path)
    found = figures(program(*words))
    assert int(found["tokens"].replace(",", "")) == (text.stat().st_size - 1) // 32 * 32
    few = figures(program(*words, "--validation-tokens", 33, "--batch-size", 1, "--seq-len", 16))
    assert int(few["tokens"]) == 48 and few["loss"] != found["loss"]
    assert everything(tmp_path) == before


def test_a_model_without_a_run_needs_a_text(program: Program, run: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "checkpoints" / "best", tmp_path / "model")
    refused(program("evaluate", tmp_path / "model"), "does not belong to a run", "--data")
    assert program("evaluate", tmp_path / "model", "--data", text)[0] == 0


@pytest.mark.parametrize("moment", ["tokenizing the text", "bytes of tokens", "evaluating"])
def test_a_signal_ends_evaluation_while_a_thread_reads_the_text(
    program: Program, run: Path, text: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    told: list[str] = []
    interrupt = Interrupt()

    def tell(what: str, *_: object, **__: object) -> None:
        told.append(what)
        if what == moment and told.count(moment) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            until_s = time.monotonic() + HANG_S
            while not interrupt.asked:  # the main thread has it soon
                assert time.monotonic() < until_s
                time.sleep(0.001)

    monkeypatch.setattr("asynctile.cli.evaluate.Interrupt", lambda: interrupt)

    rows = ValidationBatches.rows
    monkeypatch.setattr(ValidationBatches, "rows", lambda self: (tell("bytes of tokens") or row for row in rows(self)))
    monkeypatch.setattr("asynctile.cli.display.open_console", lambda _: SimpleNamespace(is_interactive=True))
    monkeypatch.setattr("asynctile.cli.display.open_display", lambda _: nullcontext(SimpleNamespace(progress=tell)))
    monkeypatch.setattr("asynctile.layers.tokens.HELD_NBYTES", 1)
    monkeypatch.setattr("asynctile.layers.text.PIECE_NBYTES", 1000)
    bytes_of = "asynctile.layers.evaluation.ByteTokenizer"
    monkeypatch.setattr(bytes_of, type("Another", (ByteTokenizer,), {}))  # whose bytes are counted
    assert program("evaluate", run, "--data", text, "--device", "cpu") == (130, "", "")
    assert told.count(moment) == 2 and told[-1] == moment


def test_a_target_that_cannot_be_evaluated_is_refused_in_a_line(
    program: Program, run: Path, text: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("x" * 32)
    refused(program("evaluate", run, "--data", short), f"data {short} has 32 tokens, less than one sequence")
    refused(program("evaluate", run, "--tokenizer", "bytes"), "--tokenizer bytes does not go with the", str(run), "--data")
    for of in ((), ("--data", text)):
        said = "--seq-len 33 is above the 32 tokens that the model takes; choose at most 32"
        refused(program("evaluate", run, "--seq-len", 33, *of), said)
    (run / "tokens" / "tokens.bin").write_bytes(b"\xff" * (run / "tokens" / "tokens.bin").stat().st_size)
    refused(program("evaluate", run), str(run), "65535")
    shutil.rmtree(run / "tokens")
    refused(program("evaluate", run), str(run / "tokens"))
