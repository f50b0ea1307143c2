"""The process of scenario `kill`: a training is killed at any moment, sometimes inside a save, and resumed.

Its final bytes must be those of a training that nobody killed. Covers when to kill, and the judgment. victim.py is the
training, the forks are those of inputs/trial.py, the answers those of answers.py.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

from asynctile.cli.stress import victim
from asynctile.cli.stress.answers import Answer, answer_seeds
from asynctile.cli.stress.finding import Kind
from asynctile.cli.stress.inputs.trial import Bench, End

__all__ = ["Killer"]

#: Time limit of a training, which takes a second. One that takes this long is hung.
DEADLINE_S = 60.0
#: Share of rounds whose kill must come inside a save, and share of those that kill the resumed training too.
_IN_SAVE, _TWICE = 0.4, 0.3


class Killer:
    """Plays rounds in `folder`: it kills a training once or twice, resumes it to its end, and compares."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bench = Bench(folder / "home", most_s=DEADLINE_S)
        (whole := folder / "whole").mkdir()
        #: a training that nobody kills, with everything in RAM
        self._whole = self._bench.run(partial(victim.train, whole, None))

    def play(self, seed: int) -> Answer:
        """Play one round."""
        (folder := self._folder / f"round-{seed}").mkdir()
        counts = Counter[str]()
        failure = self._play(folder, random.Random(f"kill {seed}"), counts)
        shutil.rmtree(folder)
        return Answer(counts=counts, failure=failure)

    def _play(self, folder: Path, chance: random.Random, counts: Counter[str]) -> tuple[Kind, str] | None:
        if not self._whole.told("done"):
            return "failed", f"an undisturbed training ended with {self._whole.words}"
        for _ in range(2 if chance.random() < _TWICE else 1):
            self._live(partial(victim.train, folder, chance.getrandbits(32), self._moment(chance)), counts)
            spill = folder / "spill"
            if left := os.listdir(spill) if spill.is_dir() else []:
                return "leaked", f"a killed training left {', '.join(left)} in its spill folder"
        return self._judge(self._live(partial(victim.train, folder, chance.getrandbits(32)), counts), folder)

    def _live(self, train: partial[None], counts: Counter[str]) -> End:
        """Let a training live to its end, and count what it told."""
        end = self._bench.run(train)
        steps = end.told("step")
        in_save = end.killed and len(end.told("save")) > len(end.told("saved"))
        counts.update(kills=end.killed, kills_in_save=in_save, steps=len(steps), played=steps.count("played"))
        return end

    def _moment(self, chance: random.Random) -> victim.Moment:
        """Draw when to kill: at any time of the run, or of one of its saves."""
        saves_s = [float(lasted_s) for lasted_s in self._whole.told("saved")]
        save = chance.randrange(len(saves_s)) if chance.random() < _IN_SAVE else None
        return victim.Moment(save, chance.uniform(0, self._whole.seconds if save is None else saves_s[save]))

    def _judge(self, end: End, folder: Path) -> tuple[Kind, str] | None:
        """Return the kind and description of a fault in a training that was resumed after a kill; None if it has none."""
        if end.stopped is not None:
            return "hung", f"a training resumed after a kill did not end within its limit of {end.stopped}"
        found, expected = end.told("done"), self._whole.told("done")
        if not found:
            return "failed", f"a training resumed after a kill ended with {end.words}"
        if found != expected:
            return "lost", f"weights and moments have the digest {found} after a kill, but {expected} without one"
        if litter := [path.name for path in (folder / "checkpoints").iterdir() if path.name.startswith(".")]:
            return "leaked", f"a resumed training left {', '.join(litter)} among the checkpoints"
        return None


if __name__ == "__main__":
    answer_seeds(Killer)
