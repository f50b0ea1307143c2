"""The process of scenario `kill`: a training is killed at any moment, sometimes inside a save, and resumed.

Its final bytes must be those of a training that nobody killed. Covers when to kill, and the judgment. command.py is the
training, answers.py the answer.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from asynctile.cli.stress.answers import Answer, answer_seeds
from asynctile.cli.stress.command import TrainCommand
from asynctile.cli.stress.finding import Kind
from asynctile.cli.stress.inputs.surroundings import Conditions
from asynctile.layers import exchange

__all__ = ["Killer"]

#: Share of rounds whose kill must come inside a save, and share of those that kill the resumed training too.
_IN_SAVE, _TWICE = 0.4, 0.3
#: Saves of a training, the best models among them, and seconds that one may take.
_SAVES, _SAVE_S = 5, 0.05
#: Where a training's bytes are; it changes from life to life.
_PLACES = (
    "--device cpu --host-memory none --spill none", "--device cpu --host-memory 400KiB --spill {spill}",
    "--device emulated --device-memory 360KiB --host-memory none --spill none",
    "--device emulated*2 --device-memory 360KiB --host-memory 400KiB --spill {spill}",
)  # fmt: skip


class Killer:
    """Plays rounds in `folder`: it kills a training once or twice, resumes it to its end, and compares."""

    def __init__(self, folder: Path) -> None:
        self._command, self._spill = TrainCommand(folder), folder / "spill"
        self._spill.mkdir()

    def play(self, seed: int) -> Answer:
        """Play one round."""
        counts = Counter[str]()
        return Answer(failure=self._play(random.Random(f"kill {seed}"), counts), counts=counts)

    def _play(self, chance: random.Random, counts: Counter[str]) -> tuple[Kind, str] | None:
        """Return the kind and description of a fault; None if there was none."""
        command = self._command
        checkpoints = command.run / "checkpoints"
        for _ in range(2 if chance.random() < _TWICE else 1):
            before = _unfinished(checkpoints)
            end = command.train(chance.choice(_PLACES).format(spill=self._spill), self._draw(chance))
            counts.update(kills=end.killed, kills_in_save=end.killed and not _unfinished(checkpoints) <= before)
            if left := os.listdir(self._spill):
                command.ended(end)
                return "leaked", f"a killed training left {', '.join(left)} in its spill folder"
        end = command.train(chance.choice(_PLACES).format(spill=self._spill))
        litter, outcome = _unfinished(checkpoints), command.ended(end)
        if end.stopped is not None:
            return "hung", f"a training resumed after a kill did not end within its limit of {end.stopped}"
        if outcome != command.outcome:
            return "lost", f"a training resumed after a kill ends with {outcome}, but without a kill with {command.outcome}"
        return ("leaked", f"a resumed training left {', '.join(litter)} among the checkpoints") if litter else None

    def _draw(self, chance: random.Random) -> Conditions:
        """Draw when to kill: at any time of the run, or of one of its saves."""
        if chance.random() < _IN_SAVE:
            return Conditions(partial(_die_in_save, chance.randrange(_SAVES), chance.uniform(1e-6, _SAVE_S)))
        return Conditions(signals=((chance.uniform(0, self._command.took_s), signal.SIGKILL),))


def _unfinished(checkpoints: Path) -> set[str]:
    return {path.name for path in checkpoints.glob(".*")}


def _die_in_save(number: int, after_s: float) -> None:
    """Let the system kill this process so long after its save of this number began, by a signal that nothing handles."""
    replace_folder, saves = exchange.replace_folder, itertools.count()

    def replaced(final: Any) -> Any:
        if next(saves) == number:
            signal.setitimer(signal.ITIMER_REAL, after_s)
        return replace_folder(final)

    setattr(exchange, "replace_folder", replaced)  # noqa: B010  (mypy knows that functions are not assigned)


if __name__ == "__main__":
    answer_seeds(Killer)
