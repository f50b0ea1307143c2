"""Classes named by --callback: where they are found, what a run tells them, and messages about classes that do not work.

Order and thread of the calls are tested in tests/test_callbacks.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Program

#: A callback that writes what it is told into a file beside it.
LISTENING = '''
import json
from pathlib import Path

from asynctile.callbacks import Callback


class Listening(Callback):
    def tell(self, *words):
        with open(Path(__file__).with_name("told"), "a") as file:
            file.write(json.dumps(words) + chr(10))

    def begin(self, run):
        self.tell("begin", str(run.folder), run.steps, run.first_step, run.options["lr"], run.config["n_layer"], run.parameters)

    def step(self, report):
        self.tell("step", report.step, report.loss)

    def validation(self, step, evaluation, is_best):
        self.tell("validation", step, evaluation.loss, is_best)

    def saved(self, step, path):
        self.tell("saved", step, str(path), path.exists())

    def end(self, status):
        self.tell("end", status)


class Failing(Callback):
    def step(self, report):
        if report.step == 3:
            raise RuntimeError("no room")


class Refusing(Callback):
    def __init__(self):
        raise PermissionError("log in first")


class Other:
    pass
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module of callbacks."""
    (tmp_path / "listeners.py").write_text(LISTENING)
    (tmp_path / "unfinished.py").write_text("import nowhere_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("listeners", None)


def test_a_class_of_the_current_folder_is_told_of_the_run_and_must_be_named_again_on_resume(
    train: Program, program: Program, folder: Path
) -> None:
    status, _, err = train("--out", "run", "--steps", 4, "--save-every", 2, "--validate-every", 4, "--callback",
                           "listeners:Listening")
    assert (status, err) == (0, "")
    told = [json.loads(line) for line in (folder / "told").read_text().splitlines()]
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in lines if "loss" in line}
    assert told[0][:6] == ["begin", "run", 4, 1, 1e-3, 1] and told[0][6] > 1000
    assert [words[1:] for words in told if words[0] == "step"] == [[step, loss] for step, loss in losses.items()]
    assert [words[1:3] for words in told if words[0] == "validation"] == [
        [line["step"], line["validation_loss"]] for line in lines if "validation_loss" in line
    ]
    assert ["saved", 4, str(Path("run/checkpoints/step-000004")), True] in told
    assert told[-1] == ["end", "finished"]
    (folder / "told").unlink()
    assert "callback" not in json.loads((folder / "run" / "run.json").read_text())["options"]
    assert program("train", "--resume", "--out", "run", "--steps", 5)[0] == 0
    assert not (folder / "told").exists()
    assert program("train", "--resume", "--out", "run", "--steps", 6, "--callback", "listeners:Listening")[0] == 0
    told = [json.loads(line) for line in (folder / "told").read_text().splitlines()]
    assert told[0][3] == 6 and [words[1] for words in told if words[0] == "step"] == [6]


def test_a_failing_callback_ends_the_run_as_a_failing_step_would(train: Program, program: Program, folder: Path) -> None:
    status, _, err = train("--out", "run", "--save-every", 2, "--callback", "listeners:Failing", "--callback",
                           "listeners:Listening")
    assert (status, err.count("\n")) == (2, 1)
    assert "the callback listeners:Failing failed at step 3, line" in err and "RuntimeError('no room'); mend it" in err
    assert json.loads((folder / "told").read_text().splitlines()[-1]) == ["end", "failed"]
    assert program("train", "--resume", "--out", "run")[0] == 0
    assert sorted(path.name for path in (folder / "run" / "checkpoints").glob("step-*"))[-1] == "step-000006"


@pytest.mark.parametrize(("name", "said"), [
    ("listeners", "cannot be used; expected MODULE:CLASS, such as tracker:Tracker"),
    ("a b:C", "cannot be used; expected MODULE:CLASS"),
    ("nowhere.at_all:Tracker", "found no module nowhere in the current folder or the environment"),
    ("unfinished:Tracker", "found no module nowhere_at_all"),
    ("listeners:Missing", "listeners:Missing failed to start: AttributeError"),
    ("listeners:Refusing", "failed to start: PermissionError('log in first'); fix the class"),
    ("listeners:Other", "listeners:Other makes a Other, not an asynctile.callbacks.Callback"),
])  # fmt: skip
def test_a_name_that_is_no_callback_is_refused_before_anything_is_made(
    train: Program, folder: Path, name: str, said: str
) -> None:
    status, _, err = train("--out", "run", "--callback", name)
    assert (status, err.count("\n")) == (2, 1) and said in err
    assert not (folder / "run").exists()


def test_no_file_names_code(train: Program, folder: Path) -> None:
    (folder / "run.toml").write_text('callback = "listeners:Listening"\n')
    status, _, err = train("--out", "run", "--config", "run.toml")
    assert status == 2 and "--callback" in err
    assert not (folder / "run").exists() and not (folder / "told").exists()
    assert train("--out", "run")[0] == 0
    record = json.loads((folder / "run" / "run.json").read_text())
    record["options"]["callback"] = ["listeners:Listening"]
    (folder / "run" / "run.json").write_text(json.dumps(record))
    assert train("--resume", "--out", "run", "--steps", 7)[0] == 0
    assert not (folder / "told").exists()
