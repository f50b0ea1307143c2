"""A run whose folder contains links: their targets are neither written nor removed, and one line says so.

The path of a run that the user types may be a link, or lead through one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from asynctile.cli import main
from asynctile.cli.run_folder import RunFolder
from tests.cli.conftest import Program
from tests.laws import covering, law

LINKED = [
    "run.json", "metrics.jsonl", "tokenizer.json", "sample.txt", "summary.json", "tokens", "tokens/tokens.bin",
    "tokens/tokens.json", "validation", "validation/tokens.bin", "samples.jsonl", "checkpoints", "checkpoints/step-000001",
    "checkpoints/step-000002", "checkpoints/best",
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two steps."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "text.txt").write_text("".join(f"line {n} of a text\n" for n in range(300)))
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 256}
    (folder / "shape.json").write_text(json.dumps(shape))
    words = ["--data", folder / "text.txt", "--model", folder / "shape.json", "--device", "cpu", "--batch-size", "4",
             "--validation-data", folder / "text.txt", "--sample-tokens", "1", "--steps", "2", "--out", folder / "run"]
    assert main(["train", *map(str, words)]) == 0
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def move_away(path: Path, far: Path) -> None:
    """Move the file or folder at `path` into `far`, and put a link in its place."""
    far.mkdir()
    if path.exists():
        path.rename(far / path.name)
    else:
        (far / path.name).mkdir()
        (far / path.name / "letter.txt").write_text("dear")
    path.symlink_to(far / path.name)


@pytest.mark.parametrize("name", [law(name) if number % 4 else name for number, name in enumerate(LINKED)])
def test_a_link_inside_a_run_is_refused_before_any_work(program: Program, run: Path, tmp_path: Path, name: str) -> None:
    move_away(run / name, tmp_path / "far")
    before = everything(tmp_path)
    status, out, err = program("train", "--resume", "--out", run, "--steps", 4, "--keep", 1)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"{run / name} is a link" in err and "replace the link by its target" in err
    assert everything(tmp_path) == before


ELSE = [
    "metrics.jsonl", "sample.txt", "tokens", "tokens/tokens.bin", "checkpoints", "checkpoints/step-000002", "checkpoints/best",
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), covering(ELSE, ["pipe", "other"], few=4))
def test_a_file_of_another_kind_is_refused_before_any_work(
    program: Program, run: Path, tmp_path: Path, name: str, kind: str
) -> None:
    (run / name).rename(tmp_path / "moved")
    if kind == "pipe":
        os.mkfifo(run / name)
    elif (tmp_path / "moved").is_dir():
        (run / name).write_text("")
    else:
        (run / name).mkdir()
    before = everything(tmp_path)
    status, out, err = program("train", "--resume", "--out", run, "--steps", 4)
    assert (status, out, err.count("\n")) == (2, "", 1) and str(run / name) in err
    assert everything(tmp_path) == before


def test_an_unwritable_folder_of_checkpoints_is_refused_before_any_work(
    program: Program, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asynctile.cli.checkpoints.os.access", lambda *_, **__: False)  # root may write everywhere
    before = everything(tmp_path)
    status, out, err = program("train", "--resume", "--out", run, "--steps", 4)
    assert (status, out, err.count("\n")) == (2, "", 1) and str(run / "checkpoints") in err
    assert everything(tmp_path) == before


def test_a_token_outside_the_models_vocabulary_is_named_with_its_file(program: Program, run: Path) -> None:
    (run / "tokens" / "tokens.bin").write_bytes(b"\xff" * (run / "tokens" / "tokens.bin").stat().st_size)
    status, _, err = program("train", "--resume", "--out", run, "--steps", 4)
    assert (status, err.count("\n")) == (2, 1) and f"tokens of the run {run} were damaged" in err and "one is 65535" in err


def test_a_held_out_token_outside_the_vocabulary_is_found_before_anything_is_changed(
    program: Program, run: Path, tmp_path: Path
) -> None:
    tokens = run / "validation" / "tokens.bin"
    content = bytearray(tokens.read_bytes())
    content[65] = 1  # the first token of the second window is above 255
    tokens.write_bytes(content)
    before = everything(tmp_path)
    status, _, err = program("train", "--resume", "--out", run, "--steps", 4)
    assert (status, err.count("\n")) == (2, 1) and f"the tokens of the run {run} were damaged" in err
    assert everything(tmp_path) == before


def test_a_run_may_be_named_through_links(program: Program, run: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    run.rename(tmp_path / "disk" / "run")
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    (tmp_path / "straight").symlink_to(tmp_path / "disk" / "run")
    assert program("train", "--resume", "--out", tmp_path / "link" / "run", "--steps", 3)[0] == 0
    assert program("train", "--resume", "--out", tmp_path / "straight", "--steps", 4, "--keep", 1)[0] == 0
    assert {path.name for path in (tmp_path / "disk" / "run" / "checkpoints").iterdir()} == {"best", "step-000004"}
    assert (tmp_path / "straight").is_symlink()


@pytest.mark.parametrize("name", ["checkpoints", law("checkpoints/step-000002"), "run.json", law("tokenizer.json")])
def test_commands_that_only_read_follow_links_and_change_nothing(
    program: Program, run: Path, tmp_path: Path, name: str
) -> None:
    move_away(run / name, tmp_path / "far")
    before = everything(tmp_path)
    status, out, err = program("generate", run, "--prompt", "line", "--max-new-tokens", 1)
    assert (status, err) == (0, "") and out.startswith("line")
    assert program("plan", "--resume", "--out", run)[0] == 0
    assert everything(tmp_path) == before


def put_folder(run: RunFolder) -> None:
    run.new_checkpoint(3)


def prune(run: RunFolder) -> None:
    run.prune(1)


def put_best(run: RunFolder) -> None:
    run.new_best()


def append_sample(run: RunFolder) -> None:
    run.append_sample({"step": 3})


def append(run: RunFolder) -> None:
    run.append_step({"step": 3})


@pytest.mark.parametrize(("name", "act"), [("checkpoints", put_folder), ("checkpoints/step-000003", put_folder),
                                           ("checkpoints/step-000001", prune), ("metrics.jsonl", append),
                                           ("samples.jsonl", append_sample), ("checkpoints/best", put_best)])  # fmt: skip
def test_a_link_that_appears_later_is_refused_too(
    run: Path, tmp_path: Path, name: str, act: Callable[[RunFolder], None]
) -> None:
    folder = RunFolder.open(run)
    folder.claim()
    try:
        move_away(run / name, tmp_path / "far")
        before = everything(tmp_path)
        with pytest.raises(Exception, match=f"{run / name} is a link"):
            act(folder)
        assert everything(tmp_path) == before
    finally:
        folder.unclaim()
