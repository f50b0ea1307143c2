"""The moments at which a training may be stopped, and the outcome it must have however often it was stopped.

`watch` calls a function at each moment, and `outcome` reads the result. Run as a program, this module kills a training at each
moment once: `python -m tests.cli.moments FOLDER WORDS...` forks trainings, each of which resumes where the one before was
killed, until one ends; it prints the moments. test_resuming.py sends signals at the same moments.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from asynctile.cli import main, summary
from asynctile.cli.display import PlainDisplay
from asynctile.cli.journal import Journal
from asynctile.kernels.cpu import warm
from asynctile.layers import plot
from asynctile.storage import folder
from tests.cli.conftest import PNG, SAMPLE_TOKENS

#: Numbers that follow from the options alone; times and bytes do not.
_TIMELESS = ("step", "loss", "lr", "grad_norm", "skipped", "validation_loss", "validation_perplexity",
             "validation_bits_per_byte", "validation_tokens", "text")  # fmt: skip
#: A kill after one of these moments leaves the same state as a kill before the next moment.
_AS_ANOTHER = ("behind the line of step", "behind the line of text", "behind validation ", "behind saving")
_MOST_LIVES = 100


def watch(patch: Callable[[Any, str, Any], None], reached: Callable[[str], None]) -> None:
    """Call `reached` with the name of each moment of a run.

    The moments are: before and after each line, in the middle of a validation, when a validation or a save is shown, before and
    after the renaming of a saved folder.
    """
    newest = [""]

    def around(owner: Any, name: str, moment: Callable[..., str | None], *, before: bool = False) -> None:
        method = getattr(owner, name)

        @wraps(method)
        def called(*told: Any) -> Any:
            found = moment(*told)
            if found is not None and before:
                reached(f"before {found}")
            result = method(*told)
            if found is not None:
                reached(f"behind {found}")
            return result

        patch(owner, name, called)

    def line(journal: Journal, _: Any, said: dict[str, Any]) -> str:
        newest[0] = f"{said['step']}"
        kind = "step" if "loss" in said else "validation" if "validation_loss" in said else "text"
        return f"the line of {kind} {said['step']}"

    around(Journal, "append", line, before=True)
    around(PlainDisplay, "validating", lambda _, done, total: f"validating {newest[0]}" if done == 1 else None)
    around(PlainDisplay, "validation", lambda _, step, *rest: f"validation {step}")
    around(PlainDisplay, "stage", lambda _, text: text if text.startswith("saving") else None)
    around(folder, "swap", lambda parent, fresh, final: f"the rename to {final} at {newest[0]}", before=True)


def outcome(run: Path) -> dict[str, Any]:
    """Return everything that must be equal in a run that was stopped and in one that was not."""
    found: dict[str, Any] = {}
    for name in ("metrics.jsonl", "samples.jsonl"):
        lines = map(json.loads, (run / name).read_text().splitlines())
        found[name] = [{key: line[key] for key in _TIMELESS if key in line} for line in lines]
    summary = json.loads((run / "summary.json").read_text())
    names = ("steps", "tokens", "validation_loss", "best_step", "best_validation_loss")
    found["summary"] = {name: summary[name] for name in names}
    newest = max((run / "checkpoints").glob("step-*"))
    found["state"] = newest.name, json.loads((newest / "trainer.json").read_text())["data_state"]
    for saved in (newest, run / "checkpoints" / "best"):
        found |= {f"{saved.name}/{path.name}": path.read_bytes() for path in saved.glob("*.safetensors")}
    found["sample"] = (run / "sample.txt").read_text()
    return found


def _killed_everywhere(place: Path, words: list[str]) -> list[str]:
    """Train in place/run, killed once at each moment; return the moments."""
    import_module("asynctile.cli.train")
    summary.SAMPLE_TOKENS = SAMPLE_TOKENS
    warm()  # so that a fork begins in milliseconds
    if find_spec("matplotlib"):
        import_module("matplotlib.figure")
        plot.png = lambda curves, figure: PNG  # a drawing takes longer than all the rest of a life
    seen: list[str] = []
    for _ in range(_MOST_LIVES):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _be_trained(place / "run", words, seen, writer)
        os.close(writer)
        with open(reader) as told:
            said = told.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != -signal.SIGKILL:
            assert status == 0, f"ended with status {status} after kills {seen}"
            return seen
        seen.append(said)
    raise AssertionError(f"no end after kills {seen}")


def _be_trained(run: Path, words: list[str], seen: list[str], pipe: int) -> None:
    """Train in the forked process. A run that was killed before it had made its record starts anew."""

    def reached(moment: str) -> None:
        if moment not in seen and not moment.startswith(_AS_ANOTHER):
            os.write(pipe, moment.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        watch(setattr, reached)
        status = main(["train", "--out", str(run), *(["--resume"] if (run / "run.json").exists() else words)])
    finally:
        os._exit(status)


if __name__ == "__main__":
    print(json.dumps(_killed_everywhere(Path(sys.argv[1]), sys.argv[2:])))
