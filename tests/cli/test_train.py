"""`asynctile train` with the real engine on a tiny model: the files of a run, and how it resumes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asynctile.layers.model import model_state_of
from tests.cli.conftest import Program, after_each_step
from tests.cli.test_refusals import refused
from tests.laws import law


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def steps(run: Path) -> list[int]:
    return [line["step"] for line in metrics(run) if "loss" in line]


def weights(run: Path, step: int) -> bytes:
    folder = run / "checkpoints" / f"step-{step:06d}"
    return (folder / "model.safetensors").read_bytes() + (folder / "optimizer.safetensors").read_bytes()


def stop_after(monkeypatch: pytest.MonkeyPatch, step: int, number: signal.Signals) -> None:
    """Send this process a signal when a step is shown."""
    after_each_step(monkeypatch, lambda shown: os.kill(os.getpid(), number) if shown == step else None)


def test_a_run_leaves_its_files(train: Program, tmp_path: Path) -> None:
    run = tmp_path / "run"
    status, out, err = train("--out", run, "--save-every", 2, "--keep", 2)
    assert (status, err) == (0, "")
    names = {path.name for path in run.iterdir()} - {"loss.png", "loss.svg"}
    files = {"run.json", "tokenizer.json", "metrics.jsonl", "sample.txt", "summary.json"}
    assert names == files | {"tokens", "checkpoints"}
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["best", "step-000004", "step-000006"]
    lines = metrics(run)
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["validation_loss"] == lines[-1]["validation_loss"]
    for said in ("validation loss", "of a bigram model", "tokens/s", "stalled", "\npeak "):
        assert said in out
    assert "the device" not in out, "it trained in RAM"
    before, sample = out.split("--- sample: start of the held-out text\n")
    sample, behind = sample.split("\n---\n")
    assert "".join(sample.split("\n--- continued by the model\n")) == (run / "sample.txt").read_text()
    assert all(len(line) < 100 for line in (before + behind).splitlines() if str(run) not in line)
    recorded = json.loads((run / "run.json").read_text())
    assert recorded["options"]["seq_len"] == 32 and recorded["options"]["tokenizer"] == "bytes"
    assert recorded["model"]["n_embd"] == 16 and "numpy" in recorded["versions"]


def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(
    train: Program, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train("--out", whole, "--clip-norm", 1, "--micro-batches", 2, "--replicas", 2)[0] == 0
    stop_after(monkeypatch, 2, signal.SIGTERM)
    before = signal.getsignal(signal.SIGTERM)
    status, out, _ = train("--out", cut, "--clip-norm", 1, "--micro-batches", 2, "--replicas", 2)
    assert status == 130 and "--resume" in out
    assert signal.getsignal(signal.SIGTERM) is before
    stopped = steps(cut)[-1]
    assert (cut / "checkpoints" / f"step-{stopped:06d}").is_dir() and stopped < 6
    status, _, err = program("train", "--resume", "--out", cut, "--device", "emulated", "--device-memory", "1MiB",
                             "--prefetch", 0, "--update", "host")
    assert (status, err) == (0, "")
    assert weights(cut, 6) == weights(whole, 6)
    timeless = ("step", "loss", "lr", "grad_norm", "validation_loss")
    assert [[line.get(name) for name in timeless] for line in metrics(cut)] == [
        [line.get(name) for name in timeless] for line in metrics(whole)
    ]


def test_a_new_run_takes_the_settings_that_planning_found_and_keeps_the_typed_ones(
    train: Program, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def plan(shape: Any, options: Any, there: None, **others: Any) -> Any:
        tried.append(options)
        return SimpleNamespace(tile=options.tile or 4, step_s=1 + abs((options.tile or 4) - 8), host_bytes=0)

    monkeypatch.setattr("asynctile.cli.search.plan_of", plan)
    run, typed = tmp_path / "run", tmp_path / "typed"
    status, out, _ = train("--out", run, "--steps", 1, "--auto", "1h", "--micro-batches", 2)
    assert status == 0 and "--auto chose --tile 8:" in out
    assert {options.micro_batches for options in tried} == {2} and {options.update for options in tried} > {"auto"}
    recorded = json.loads((run / "run.json").read_text())["options"]
    assert recorded["tile"] == 8 and "auto" not in recorded
    assert train("--out", typed, "--steps", 1, "--micro-batches", 2, "--tile", 8)[0] == 0
    assert weights(run, 1) == weights(typed, 1)
    status, _, err = program("train", "--resume", "--out", run, "--auto", "1s")
    assert status == 2 and "--auto chooses the settings of a new run" in err


def test_a_run_that_planning_cannot_make_faster_keeps_the_defaults(train: Program, tmp_path: Path) -> None:
    status, out, _ = train("--out", tmp_path / "run", "--steps", 1, "--auto", "0.001s")
    assert status == 0 and "--auto found no faster settings" in out


def test_resume_refuses_options_that_would_make_another_run(train: Program, program: Program, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 1)[0] == 0
    for words in (["--seq-len", 16], ["--beta1", 0.5], ["--seed", 9], ["--tile", 16], ["--clip-norm", 1]):
        status, _, err = program("train", "--resume", "--out", run, *words)
        assert status == 2 and str(words[0]) in err and err.count("\n") == 1


def test_the_tokens_that_end_a_text_do_not_make_another_model(
    train: Program, program: Program, shape: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 2)[0] == 0
    shape.write_text(json.dumps(json.loads(shape.read_text()) | {"eos_token_id": 10}))
    for steps in (3, 4):
        assert program("train", "--resume", "--out", run, "--steps", steps)[0] == 0


@pytest.mark.filterwarnings("default:.*written under different conditions")
def test_a_run_from_a_gpu_goes_on_elsewhere_in_another_precision(train: Program, program: Program, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 2)[0] == 0
    record = json.loads((run / "run.json").read_text())
    assert record["options"]["precision"] == "fp32"
    record["options"] |= {"device": "cuda:0", "precision": "bf16"}
    (run / "run.json").write_text(json.dumps(record))
    checkpoint = run / "checkpoints" / "step-000002"
    state = json.loads((checkpoint / "trainer.json").read_text()) | {"precision": "bf16", "tall": 4}
    (checkpoint / "trainer.json").write_text(json.dumps(state))
    (checkpoint / "checksums.json").unlink()
    resume = ("train", "--resume", "--out", run, "--steps", 3, "--device", "cpu")
    status, _, err = program(*resume)
    assert status == 2 and "--precision bf16 needs --device cuda:N; use --precision fp32 on cpu" in err
    status, _, err = program(*resume, "--precision", "fp32")
    assert (status, "precision 'bf16' -> 'fp32', tall 4 -> 1" in err) == (0, True), err
    assert steps(run) == [1, 2, 3]


def test_a_loss_that_stays_infinite_ends_the_run(train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped steps do not count, but a run of nothing else must end."""
    from asynctile.layers import Trainer

    step = Trainer.step

    async def skipped(self: Trainer, tokens: Any, targets: Any) -> Any:
        from dataclasses import replace

        report = await step(self, tokens, targets)
        model_state_of(self.model).step_count = 0
        return replace(report, step=0, loss=float("nan"), skipped=True)

    monkeypatch.setattr(Trainer, "step", skipped)
    status, _, err = train("--out", tmp_path / "run")
    assert status == 2 and "not finite" in err


def test_trained_tokenizer_and_trace(train: Program, program: Program, tmp_path: Path) -> None:
    run, trace = tmp_path / "run", tmp_path / "trace.json"
    shape = tmp_path / "wide.json"
    shape.write_text(json.dumps({"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 300}))
    words = ("--model", shape, "--tokenizer", "bpe:280", "--trace", trace, "--device", "emulated", "--steps", 2)
    status, _, err = train("--out", run, *words)
    assert (status, err) == (0, "")
    assert json.loads(trace.read_text())
    prompt = "line 7: é " * 20  # longer than the window of 32 tokens
    status, out, err = program("generate", run, "--prompt", prompt, "--max-new-tokens", 5)
    assert (status, err) == (0, "") and out.startswith(prompt)
    folder = run / "checkpoints" / "step-000002"
    words = ("generate", folder, "--prompt", "a", "--max-new-tokens", 20, "--seed", 1)
    status, found, _ = program(*words)
    assert (status, found) == (0, program("generate", run, *words[2:])[1])
    (folder / "tokenizer.json").unlink()
    assert program(*words)[0] == 2  # a model without its tokenizer
    (folder / "checksums.json").unlink()
    status, out, err = program(*words, "--tokenizer", run / "tokenizer.json")
    assert (status, out) == (0, found), err
    size = (folder / "model.safetensors").stat().st_size
    with open(folder / "model.safetensors", "r+b") as file:  # as a run that diverged leaves them
        file.seek(size // 8 * 4)
        file.write(b"\x00\x00\xc0\x7f" * ((size - size // 8 * 4) // 4))
    refused(program("generate", run, "--prompt", "a"), str(folder), "logits are not finite", command="generate")


@pytest.mark.parametrize("device", ["cpu", law("emulated"), "emulated*2"])
def test_a_run_with_a_disk_below_ram_has_equal_bits_reports_its_spill_and_leaves_nothing(
    device: str, train: Program, tmp_path: Path
) -> None:
    assert train("--out", tmp_path / "all", "--replicas", 2)[0] == 0
    (tmp_path / "spill").mkdir()
    options = ["--device", device, "--replicas", 2, "--host-memory", "400KiB", "--spill", tmp_path / "spill"]
    options += ["--spill-limit", "4MiB"]
    if device != "cpu":
        options += ["--device-memory", "360KiB"]
    status, out, err = train("--out", tmp_path / "spilled", *options)
    assert (status, err) == (0, "")
    assert "from the spill folder and wrote" in out and "tiles that do not fit into RAM spill to " in out
    assert weights(tmp_path / "spilled", 6) == weights(tmp_path / "all", 6)
    assert list((tmp_path / "spill").iterdir()) == []
    assert sum(line.get("spill_read_bytes", 0) for line in metrics(tmp_path / "spilled")) > 0


def test_a_run_goes_on_with_equal_bits_on_another_number_of_devices(train: Program, program: Program, tmp_path: Path) -> None:
    whole, run, words = tmp_path / "whole", tmp_path / "run", ["--replicas", 4, "--steps", 4, "--validate-every", 2]
    assert train("--out", whole, *words, "--sample-tokens", 3)[0] == 0
    capped = ["--device", "emulated*2", "--device-memory", "360KiB"]
    status, out, err = train("--out", run, *words, *capped, "--decay-steps", 4, "--steps=2", "--sample-tokens", 3)
    assert (status, err) == (0, "")
    assert "on emulated*2 in fp32 with a memory cap of 360.00 KiB on each device" in out
    assert "to the devices and" in out and "on each device, " in out
    for device, last in (("emulated*4", 3), ("emulated*3", 4)):
        status, out, err = program("train", "--out", run, "--resume", "--device", device, "--steps", last)
        assert (status, err) == (0, "")
        assert f"on {device} in fp32" in out
    assert weights(run, 4) == weights(whole, 4)
    found = [[line for line in metrics(path) if line["step"] in (2, 4)] for path in (run, whole)]
    told = [[line.get("loss", line.get("validation_loss")) for line in lines] for lines in found]
    assert told[0] == told[1] and len(told[0]) == 4
    assert (run / "samples.jsonl").read_text().splitlines()[0] == (whole / "samples.jsonl").read_text().splitlines()[0]


def test_a_run_refuses_to_go_on_with_more_devices_than_replicas(train: Program, program: Program, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--replicas", 2, "--steps=1")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    again = ("train", "--out", run, "--resume", "--steps", 2, "--device")
    refused(program(*again, "emulated*4"), "--device emulated*4 has 4 devices, but --replicas is 2")
    refused(program(*again, "cuda:0-3"), "--device cuda:0-3 has 4 devices, but --replicas is 2")
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_run_in_use_by_another_process_is_refused_in_one_line(train: Program, tmp_path: Path) -> None:
    assert train("--out", tmp_path / "run")[0] == 0
    before = (tmp_path / "run" / "run.json").read_bytes()
    other = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        status, out, err = train("--out", tmp_path / "run", "--resume", "--steps", 9)
    finally:
        os.close(other)
    assert (status, out) == (2, "")
    assert err == f"asynctile train: the run {tmp_path / 'run'} is in use by another process; wait for it, stop it, or name " \
                  "another --out folder\n"  # fmt: skip
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert train("--out", tmp_path / "run", "--resume", "--steps", 7)[0] == 0


def test_a_plan_of_a_resumed_run_is_of_its_own_model(train: Program, program: Program, tmp_path: Path) -> None:
    assert train("--out", tmp_path / "run")[0] == 0
    status, out, _ = program("plan", "--resume", "--out", tmp_path / "run")
    assert status == 0
    assert "1 layer, 2 heads, width 16" in out


def test_hand_edited_metrics_give_a_summary_or_one_line_before_any_step(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 2)[0] == 0
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 1}\n[[[\n{"step": 2, "loss": "nan", "tokens": "many", "step_s": null, "validation_loss": "x"}\n')
    assert program("train", "--resume", "--out", run, "--steps", 3)[0] == 0
    assert [line["step"] for line in metrics(run)] == [0, 1, 1, 2, 2, 1, 2, 3, 3]
    assert json.loads((run / "summary.json").read_text())["tokens"] == 3 * 4 * 32
    with open(run / "metrics.jsonl", "a") as file:
        file.write(" " * (1 << 17))
    before = (run / "metrics.jsonl").read_bytes()
    status, _, err = program("train", "--resume", "--out", run, "--steps", 4)
    assert (status, err.count("\n")) == (2, 1) and "metrics.jsonl: line 10 has more than" in err
    assert (run / "metrics.jsonl").read_bytes() == before
