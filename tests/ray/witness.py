"""Notes about a run on Ray: when it began or went on, when and why each worker ended, and what Ray noticed itself.

Imported where workers and Ray's controller run, through the folders that Ray takes over from the program.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asynctile.callbacks import Callback, Run
from asynctile.layers.report import StepReport
from asynctile.ray.worker import work

#: Seconds of a slow step.
SLOW_S = 0.5


class Slow(Callback):
    """Makes each step take SLOW_S, so that a loss comes in the middle, and notes each beginning of the run."""

    def begin(self, run: Run) -> None:
        _note(run.folder, began=run.first_step)

    def step(self, report: StepReport) -> None:
        time.sleep(SLOW_S)


def witnessed(config: Mapping[str, Any]) -> None:
    """Do what a worker of Ray Train does. Note the words with which it fails."""
    try:
        work(config)
    except BaseException as error:
        _note(Path(config["given"]["out"]), by="a worker", lost=str(error))
        raise


def ears(run: Path) -> Any:
    """Return a callback of Ray, which notes the errors of workers that Ray meets when it looks at them, every 2 s."""
    from ray.train import UserCallback

    class Ears(UserCallback):
        def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
            for error in worker_exceptions.values():
                _note(run, by="Ray", lost=str(error))

    return Ears()


def notes(run: Path) -> list[dict[str, Any]]:
    """Return the notes about a run, each with the time `at`, and `began`, the next step, or `lost`, the words of `by`."""
    return [json.loads(line) for line in _file(run).read_text().splitlines()]


def _note(run: Path, **what: Any) -> None:
    with _file(run).open("a") as file:
        file.write(json.dumps({"at": time.time(), **what}) + "\n")


def _file(run: Path) -> Path:
    return run.with_name("witness.jsonl")
