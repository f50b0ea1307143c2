"""Checkpoints of a run: written after its steps, on a disk that fills up, cut off by a kill, or of another model.

test_train.py tests what a run leaves and how it resumes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asynctile.cli.run_folder import RunFolder
from asynctile.errors import AsynctileError
from asynctile.storage.checksums import checksum
from asynctile.storage.tensors import TensorWriter
from tests.cli.conftest import Program, after_each_step
from tests.laws import law
from tests.settle import HANG_S


def checkpoints(run: Path) -> list[str]:
    """Return every name in the folder of checkpoints, litter included, except the best model."""
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.name != "best")


def everything(run: Path) -> dict[str, Any]:
    """Return every file of a run; of run.json only the model, because options that may change are recorded when typed."""
    found: dict[str, Any] = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    return found | {"run.json": json.loads(found["run.json"])["model"]}


def weights(run: Path, step: int) -> bytes:
    return (run / "checkpoints" / f"step-{step:06d}" / "optimizer.safetensors").read_bytes()


def fill_disk_at(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make the disk full from the save of checkpoint `name` on."""
    fallocate = os.posix_fallocate

    def full(fd: int, offset: int, nbytes: int) -> None:
        if name in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(28, "No space left on device")
        fallocate(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", full)


@pytest.mark.parametrize("step", [4, law(6)])
def test_a_full_disk_leaves_the_old_checkpoint(
    train: Program, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """On the way or at the end: one line, and the run resumes from the checkpoint before."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert train("--out", whole)[0] == 0
    with monkeypatch.context() as patch:
        fill_disk_at(patch, f"step-{step:06d}")
        status, _, err = train("--out", run, "--save-every", 2)
    assert status == 2 and err.count("\n") == 1
    for part in (f"cannot save {run / 'checkpoints'}/step-{step:06d}: No space left", "needs ", "are free"):
        assert part in err
    assert checkpoints(run) == [f"step-{n:06d}" for n in range(2, step, 2)]
    status, _, err = program("train", "--resume", "--out", run)
    assert (status, err) == (0, "")
    assert weights(run, 6) == weights(whole, 6)


def test_a_checkpoint_being_written_while_a_step_fails_is_completed(
    train: Program, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, failed = tmp_path / "run", threading.Event()

    def written(*told: Any) -> str:
        assert failed.wait(HANG_S)
        return checksum(*told)

    def failing(step: int) -> None:
        if step == 3:
            failed.set()
            raise AsynctileError("step 3 failed")

    with monkeypatch.context() as patch:
        patch.setattr("asynctile.layers.weight_files.checksum", written)
        after_each_step(patch, failing)
        status, _, err = train("--out", run, "--save-every", 2, "--validate-every", 6)
    assert status == 2 and "step 3 failed" in err
    assert checkpoints(run) == ["step-000002"]
    assert program("train", "--resume", "--out", run)[0] == 0


def test_a_full_disk_leaves_the_old_best_model(
    train: Program, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier best model stays, and the run resumes from its checkpoint as if nothing had happened."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    options = ("--save-every", 2, "--validate-every", 2)
    assert train("--out", whole, *options)[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "new_best", second_time(lambda: fill_disk_at(patch, "best"), RunFolder.new_best))
        status, _, err = train("--out", run, *options)
    assert status == 2 and err.count("\n") == 1 and f"cannot save {run / 'checkpoints' / 'best'}: No space left" in err
    assert checkpoints(run) == ["step-000002"]
    model = (Path("checkpoints") / name / "model.safetensors" for name in ("best", "step-000002"))
    assert len({(run / path).read_bytes() for path in model}) == 1
    assert program("train", "--resume", "--out", run)[0] == 0
    for name in ("best/model.safetensors", "step-000006/optimizer.safetensors"):
        assert (run / "checkpoints" / name).read_bytes() == (whole / "checkpoints" / name).read_bytes()


def second_time(act: Callable[[], None], method: Callable[[RunFolder], Path]) -> Callable[[RunFolder], Path]:
    calls = []

    def called(folder: RunFolder) -> Path:
        calls.append(folder)
        if len(calls) == 2:
            act()
        return method(folder)

    return called


def test_only_complete_checkpoints_replace_older_ones(train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        fill_disk_at(patch, "step-000003")
        assert train("--out", run, "--save-every", 1, "--keep", 1)[0] == 2
    assert checkpoints(run) == ["step-000002"]
    assert train("--out", run, "--resume", "--save-every", 1, "--keep", 1)[0] == 0
    assert checkpoints(run) == ["step-000006"]


def test_a_signal_during_a_save_leaves_that_checkpoint_and_one_of_the_last_step(
    train: Program, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert train("--out", whole)[0] == 0
    write, sent = TensorWriter.write, []

    def signalled(step: int) -> None:
        if step == 2:
            assert not (run / "checkpoints" / "step-000001").exists(), "the save has ended before the signal"
            sent.append(step)
            os.kill(os.getpid(), signal.SIGINT)

    def slowly(writer: TensorWriter, *args: Any) -> None:
        while not sent:
            time.sleep(0.001)
        write(writer, *args)

    with monkeypatch.context() as patch:
        after_each_step(patch, signalled)
        patch.setattr(TensorWriter, "write", slowly)
        status, out, _ = train("--out", run, "--save-every", 1, "--validate-every", 6)
    assert status == 130 and "step-000002 is saved" in out
    assert checkpoints(run) == ["step-000001", "step-000002"]
    assert program("train", "--resume", "--out", run)[0] == 0
    assert weights(run, 6) == weights(whole, 6)


def test_a_state_left_by_a_kill_is_read_in_place_and_mended_when_the_run_resumes(
    train: Program, program: Program, tmp_path: Path
) -> None:
    """The newest checkpoint stands beside its place, because the kill came between two renames; a half checkpoint is litter."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert train("--out", whole)[0] == 0
    assert train("--out", run, "--steps", 2, "--warmup", 0)[0] == 0
    folder = run / "checkpoints"
    (folder / "step-000002").rename(folder / ".step-000002.0123abcd.old")
    (folder / ".step-000004.89abcdef.new").mkdir()
    (folder / ".step-000004.89abcdef.new" / "config.json").write_text("{")
    status, _, err = program("generate", run, "--prompt", "a", "--max-new-tokens", 1)
    assert (status, err) == (0, "")
    left = [".step-000002.0123abcd.old", ".step-000004.89abcdef.new"]
    assert checkpoints(run) == left
    assert program("train", "--resume", "--out", run, "--host-memory", "1KiB")[0] == 2
    assert checkpoints(run) == left
    assert program("train", "--resume", "--out", run, "--steps", 3)[0] == 0
    assert checkpoints(run) == ["step-000002", "step-000003"]


def refused(run: Path, result: tuple[int, str, str], before: dict[str, Any], *words: str) -> None:
    status, _, err = result
    assert status == 2 and err.count("\n") == 1
    for word in words:
        assert word in err
    assert everything(run) == before


def test_a_changed_model_is_refused(train: Program, program: Program, tmp_path: Path, shape: Path) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 2)[0] == 0
    before = everything(run)
    shape.write_text(json.dumps(json.loads(shape.read_text()) | {"n_layer": 2}))
    result = program("train", "--resume", "--out", run, "--steps", 4)
    refused(run, result, before, "--model", "is not the model that the run began with", "n_layer is 2 instead of 1", "--out")


def test_a_checkpoint_of_another_model_is_refused(train: Program, program: Program, tmp_path: Path, shape: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    assert train("--out", run, "--steps", 2)[0] == 0
    wide = tmp_path / "wide.json"
    wide.write_text(json.dumps(json.loads(shape.read_text()) | {"n_layer": 2}))
    assert train("--out", other, "--steps", 3, "--model", wide)[0] == 0
    (other / "checkpoints" / "step-000003").rename(run / "checkpoints" / "step-000003")
    before = everything(run)
    result = program("train", "--resume", "--out", run)
    refused(run, result, before, "step-000003", "is not the model that the run began with", "n_layer is 2 instead of 1")


@pytest.mark.parametrize("name", [law("model.safetensors"), "optimizer.safetensors", law("trainer.json")])
def test_a_flipped_bit_is_found_and_the_checkpoint_before_it_named(
    train: Program, program: Program, tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 2, "--save-every", 1)[0] == 0
    older, newest = (run / "checkpoints" / f"step-00000{step}" for step in (1, 2))
    for path, start in ((newest, f"{run} continues from {older}, step 1"), (older, f"{run} has no checkpoint and starts at")):
        content = bytearray((path / name).read_bytes())
        content[len(content) // 2] ^= 1
        (path / name).write_bytes(content)
        before = everything(run)
        said = (str(path / name), "damaged", f"without {path}, {start}")
        refused(run, program("train", "--resume", "--out", run), before, *said)
        shutil.rmtree(path)
    assert program("train", "--resume", "--out", run)[0] == 0


def test_a_later_format_is_refused(train: Program, program: Program, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 2)[0] == 0
    path = run / "checkpoints" / "step-000002" / "trainer.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps(state | {"format": 7}))
    before = everything(run)
    refused(run, program("train", "--resume", "--out", run), before, "step-000002", "format 7")
    path.write_text(json.dumps(state))
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"format": 7}))
    before = everything(run)
    refused(run, program("train", "--resume", "--out", run), before, "run.json", "format 7")
