"""The process of scenario `signals`: a training gets two signals, and is resumed; it must have the same bytes as without.

Covers the pairs of signals and their outcomes. command.py is the training, answers.py the answer.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asynctile import starting
from asynctile.cli import interrupt
from asynctile.cli.interrupt import AGAIN_S, EXIT_STATUS, Interrupt
from asynctile.cli.session import Session
from asynctile.cli.stress.answers import Answer, answer_seeds
from asynctile.cli.stress.command import TrainCommand
from asynctile.cli.stress.finding import Kind
from asynctile.cli.stress.inputs.surroundings import Conditions
from asynctile.cli.stress.inputs.trial import End
from asynctile.layers import weight_files

__all__ = ["Signaller"]

#: The longest time between the two signals.
_MOST_APART_S = 3.0
#: A process may receive signals later than they were sent: this close to the limit either outcome is right.
_EDGE_S = 0.2
#: Seconds of a slow step or save, longer than until the second signal, or it would find no process. Seconds in which a process
#: must be gone after the signal that ends it.
_SLOW_S, _GONE_S = 5.0, 1.0
#: The first signal comes within this part of the usual time of a training, which varies: most signals should meet it.
_BEGUN = 0.85
_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_AT_ONCE = "asynctile train: stopped at once; with --resume, "


class Signaller:
    """Plays pairs in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._command = TrainCommand(folder)

    def play(self, seed: int) -> Answer:
        """Play one pair, and the training to its end."""
        command, chance = self._command, random.Random(f"signals {seed}")
        first_s, apart_s = chance.uniform(0, _BEGUN * command.took_s), chance.uniform(0, _MOST_APART_S)
        signals = tuple((at_s, chance.choice(_NUMBERS)) for at_s in (first_s, first_s + apart_s))
        end = command.train(conditions=Conditions(chance.choice((_slow_step, _slow_save)), signals))
        ended, wrong = _judge(end, command.run)
        resumed = command.train()
        outcome = command.ended(resumed)
        if wrong is None and (said := _promised(end)) not in resumed.out.decode():
            wrong = "failed", f"it said {said!r}, but --resume says {resumed.out[:500].decode()!r}"
        if outcome != command.outcome:
            wrong = "lost", f"it ends with {outcome}, but without a signal with {command.outcome}"
        if wrong is not None:
            sent = " and ".join(f"{signal.Signals(number).name} after {at_s:.3f} s" for at_s, number in end.sent)
            wrong = wrong[0], f"{sent}: {wrong[1]}".replace(f"{command.folder}/", "")
        return Answer(counts={"pairs": {ended: 1}}, failure=wrong)


def _judge(end: End, run: Path) -> tuple[str, tuple[Kind, str] | None]:
    """Return how a signalled training ended, and the kind and description of a fault in that, or None."""
    times = [at_s for at_s, _ in end.sent]
    apart_s = times[1] - times[0] if len(times) == 2 else 0.0
    last = end.out.decode().rstrip("\n").rpartition("\n")[2]
    if end.stopped is not None:
        return "not at all", ("hung", f"it did not end within its limit of {end.stopped}")
    if end.err:
        return "with an error", ("failed", end.words)
    if end.status == 0:
        return "finished", None
    if last.startswith(_AT_ONCE):
        wrong = apart_s < AGAIN_S - _EDGE_S
        return "at once", ("lost", f"signals {apart_s:.3f} s apart ended it at once") if wrong else None
    if apart_s > AGAIN_S + _EDGE_S and end.seconds - times[1] > _GONE_S:
        return "late", ("hung", f"the second signal, {apart_s:.3f} s after the first, did not end it; it said {last!r}")
    if end.status == EXIT_STATUS and "is saved; --resume" in last:
        return "saved", None
    if any((run / "checkpoints").glob("step-*")) or end.status not in (EXIT_STATUS, -signal.SIGTERM):
        return "otherwise", ("failed", f"status {end.status}; its last line was {last!r}")
    return "before the first step", None


def _promised(end: End) -> str:
    """Return the place from which a stopped training said it would continue; the resumed one must say the same."""
    last = end.out.decode().rstrip("\n").rpartition("\n")[2]
    if last.startswith(_AT_ONCE):
        return last.removeprefix(_AT_ONCE)
    saved = last.partition("stopped; ")[2].partition(" is saved; ")[0]
    return f"continues from {saved}, " if saved else ""


def _as_program(asked: Callable[[], None]) -> None:
    """Make the fork behave as the program `asynctile`, to its end. asked: called when the first signal comes."""
    ask = Interrupt._ask

    def told(self: Interrupt) -> None:
        ask(self)
        asked()

    setattr(Interrupt, "_ask", told)  # noqa: B010  (mypy knows that methods are not assigned)
    for module in (starting, interrupt):
        setattr(module, "is_program", lambda: True)  # noqa: B010


def _slow_step() -> None:
    """Make steps slow once a signal has come."""
    seen: list[bool] = []
    _as_program(lambda: seen.append(True))
    step = Session._step

    async def slow(session: Session) -> None:
        await step(session)
        if seen:
            await asyncio.sleep(_SLOW_S)

    setattr(Session, "_step", slow)  # noqa: B010


def _slow_save() -> None:
    """Make a save slow in its middle once a signal has come."""
    seen: list[bool] = []
    _as_program(lambda: seen.append(True))
    checksum = weight_files.checksum

    def slow(*given: Any) -> str:
        if seen:
            seen.clear()
            time.sleep(_SLOW_S)
        return checksum(*given)

    setattr(weight_files, "checksum", slow)  # noqa: B010


if __name__ == "__main__":
    answer_seeds(Signaller)
