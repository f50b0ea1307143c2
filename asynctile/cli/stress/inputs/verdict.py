"""The allowed outcomes of a command on damaged input: the laws of files, checked from outside.

Covers `judge`. A command may accept the input, or refuse it in one line that names what is wrong. It must end in time and
within its memory, and leave everything alone that is not its own.
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.inputs.damage import Damage
from asynctile.cli.stress.inputs.prey import Order
from asynctile.cli.stress.inputs.surroundings import Conditions
from asynctile.cli.stress.inputs.trial import MOST_NBYTES, MOST_S, End
from asynctile.storage.sizes import format_size

__all__ = ["judge", "judge_saved"]

#: exit statuses: success, an error that the user can fix, stopped by a signal
_STATUSES = (0, 2, 130)
_LONGEST = 2_000
_BROKEN = re.compile(r"Traceback|panicked|Exception ignored|never retrieved|was never awaited|core dumped|Fatal Python error")
#: Characters that a terminal would obey: control characters except newline and tab.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def judge(
    end: End, order: Order, damage: Damage, touched: list[str], named: tuple[str, ...], around: Conditions
) -> None:
    """Raise Finding for an outcome that is not allowed.

    end: how the command ended. touched: foreign files that changed. named: an error must contain one of these. around: the
    conditions under which the command ran.
    """
    _judge_cost(end)
    if touched:
        raise Finding("touched", f"{', '.join(touched[:3])}{' and more' if len(touched) > 3 else ''}")
    out, err = _text(end.out, "stdout"), _text(end.err, "stderr")
    command = order.words.split()[0]
    if broken := _BROKEN.search(err + out):
        raise Finding("failed", f"{broken[0]!r}, status {end.status}: {_last_line(err)}")
    if end.status not in _STATUSES and end.status not in _deaths(around):
        raise Finding("failed", f"status {end.status}: {_last_line(err)}")
    lines = err.splitlines()
    if foreign := [line for line in lines if not line.startswith(f"asynctile {command}: ")]:
        raise Finding("failed", f"stderr holds a line that is not the command's: {foreign[0]}")
    if long := [line for line in lines if len(line) > _LONGEST]:
        raise Finding("failed", f"stderr holds a line of {len(long[0])} characters: {long[0]}")
    if end.status == 2 and not lines:
        raise Finding("failed", "status 2 without a message")
    if end.status == 2 and not any(name in lines[-1] for name in named):
        raise Finding("failed", f"the error names neither a file nor an option: {lines[-1]}")
    if damage.checked in order.checks and end.status != 2:
        raise Finding("lost", f"{damage.checked} does not match its checksum, but the status is {end.status}")


def judge_saved(run: Path, end: End) -> None:
    """Raise Finding unless the newest checkpoint of a training is that of the last step in its metrics.

    Nothing is judged after status 2 (an error that the user can fix), without metrics, or before the first step.
    """
    if end.status == 2 or not (run / "metrics.jsonl").exists():
        return
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    steps = [line["step"] for line in lines if "loss" in line]
    saved = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    if steps and (not saved or saved[-1] != f"step-{steps[-1]:06}"):
        raise Finding("lost", f"status {end.status}: {steps[-1]} steps were done, but the newest checkpoint is {saved[-1:]}")


def _deaths(around: Conditions) -> list[int]:
    """Return the statuses of a process killed by a signal that it does not handle.

    Signals are unhandled before a training begins, and in commands that write nothing. All handle Ctrl-C. `judge_saved` checks
    whether steps are lost.
    """
    return [-number for _, number in around.signals if number != signal.SIGINT]


def _judge_cost(end: End) -> None:
    if end.stopped == "time" or end.seconds > MOST_S:
        raise Finding("hung", f"did not end within {MOST_S:g} s")
    if end.stopped == "output":
        raise Finding("greedy", "its output does not end")
    if end.stopped == "memory" or end.nbytes > MOST_NBYTES:
        raise Finding("greedy", f"{format_size(end.nbytes)} of memory above the import, limit {format_size(MOST_NBYTES)}")


def _text(content: bytes, where: str) -> str:
    text = content.decode("utf-8", errors="surrogateescape")
    if raw := _CONTROL.search(text):
        around = text[max(0, raw.start() - 60) : raw.end() + 60]
        raise Finding("failed", f"{raw[0]!r} reached {where} from a file: {around!r}")
    return text


def _last_line(err: str) -> str:
    return (err.strip().splitlines() or ["nothing on stderr"])[-1][:300]
