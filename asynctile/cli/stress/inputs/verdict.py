"""What a command on damaged input may come to, and what it may not: the laws of files, looked at from outside.

Covers `judge`. A command may go on, or refuse in one line that names what is wrong; it ends in time, within its memory, and
leaves everything alone that is not its own.
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

#: of exit: it went on, what the user can mend, stopped by a signal
_STATUSES = (0, 2, 130)
_LONGEST = 2_000
_BROKEN = re.compile(r"Traceback|panicked|Exception ignored|never retrieved|was never awaited|core dumped|Fatal Python error")
#: What a terminal would obey: control characters but the end of a line and a tabulator.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def judge(
    end: End, order: Order, damage: Damage, touched: list[str], named: tuple[str, ...], around: Conditions
) -> None:
    """Finding for what must not be. touched: what changed that is not the command's own. named: an error names one of them."""
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
        raise Finding("failed", f"a line on stderr that is no sentence of the command: {foreign[0]}")
    if long := [line for line in lines if len(line) > _LONGEST]:
        raise Finding("failed", f"a line of {len(long[0])} characters on stderr: {long[0]}")
    if end.status == 2 and not lines:
        raise Finding("failed", "status 2 without a word")
    if end.status == 2 and not any(name in lines[-1] for name in named):
        raise Finding("failed", f"an error that names neither a file nor an option: {lines[-1]}")
    if damage.checked in order.checks and end.status != 2:
        raise Finding("lost", f"{damage.checked} is not what its checksum was taken of, and the status is {end.status}")


def judge_saved(run: Path, end: End) -> None:
    """Finding if a training that ended in order has steps in its metrics that no checkpoint holds."""
    if end.status == 2 or not (run / "metrics.jsonl").exists():
        return
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    steps = [line["step"] for line in lines if "loss" in line]
    saved = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    if steps and (not saved or saved[-1] != f"step-{steps[-1]:06}"):
        raise Finding("lost", f"status {end.status}; {steps[-1]} steps were done, and the newest checkpoint is {saved[-1:]}")


def _deaths(around: Conditions) -> list[int]:
    """Statuses of who does not listen to a signal that was sent: before a training begins, and all of a command that writes
    nothing. Ctrl-C is listened to by all; whether steps are lost is `judge_saved`'s.
    """
    return [-number for _, number in around.signals if number != signal.SIGINT]


def _judge_cost(end: End) -> None:
    if end.stopped == "time" or end.seconds > MOST_S:
        raise Finding("hung", f"not done after {MOST_S:g} s")
    if end.stopped == "output":
        raise Finding("greedy", "its outputs have no end")
    if end.stopped == "memory" or end.nbytes > MOST_NBYTES:
        raise Finding("greedy", f"{format_size(end.nbytes)} of memory above the import, expected {format_size(MOST_NBYTES)}")


def _text(content: bytes, where: str) -> str:
    text = content.decode("utf-8", errors="surrogateescape")
    if raw := _CONTROL.search(text):
        around = text[max(0, raw.start() - 60) : raw.end() + 60]
        raise Finding("failed", f"{raw[0]!r} on {where}, as it stood in a file: {around!r}")
    return text


def _last_line(err: str) -> str:
    return (err.strip().splitlines() or ["nothing on stderr"])[-1][:300]
