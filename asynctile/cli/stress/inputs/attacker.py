"""The process of scenario `inputs`: it copies files, damages them, forks a command and judges the outcome (answers.py)."""

from __future__ import annotations

import os
import random
import shutil
from functools import partial
from pathlib import Path

from asynctile.cli import main
from asynctile.cli.stress.answers import Answer, answer_seeds
from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.inputs.bystanders import changes, survey
from asynctile.cli.stress.inputs.damage import Damage, damage
from asynctile.cli.stress.inputs.prey import Order, Prey, draw_order, draw_target
from asynctile.cli.stress.inputs.standing import RunStanding
from asynctile.cli.stress.inputs.surroundings import SURROUNDINGS, Conditions, without_rights
from asynctile.cli.stress.inputs.trial import Bench
from asynctile.cli.stress.inputs.verdict import judge, judge_saved

__all__ = ["Attacker"]


class Attacker:
    """Plays cases in `folder`."""

    def __init__(self, folder: Path) -> None:
        (place := folder / "place").mkdir()
        self._place, self._bench = place, Bench(place / "home")
        (prey := place / "prey").mkdir()
        self.prey = Prey(prey, lambda words: self._bench.run(partial(main, words)))

    def play(self, seed: int) -> Answer:
        """Play one case."""
        chance = random.Random(f"inputs {seed}")
        target = draw_target(chance)
        order = draw_order(chance, target)
        folder = self._place / "case"
        folder.mkdir()
        try:
            return self._play(folder, target, order, chance)
        finally:
            _clear(folder)

    def _play(self, folder: Path, target: str, order: Order, chance: random.Random) -> Answer:
        original = self.prey.original(target)
        copy, new = folder / original.name, folder / "new"
        shutil.copytree(original, copy)
        harm, around = self._harm(copy, target, order, chance)
        written = {"it": copy, "new": new, None: None}[order.writes]
        known = {"text": self.prey.text, "shape": self.prey.shape, "model": self.prey.original("model")}
        words = order.words.format(it=copy, new=new, **known).split()
        before, stood = survey(self._place, but=written), RunStanding.of(copy)
        end = self._bench.run(partial(main, words), around)
        touched = changes(before, survey(self._place, but=written))
        failure = None
        try:
            judge(end, order, harm, touched, (str(self._place), "/dev/", "--", "stdout", "ulimit"), around)
            if end.status == 2:
                stood.expect(RunStanding.of(copy), whole=target == "process")
            if target == "process" and written is not None:
                judge_saved(written, end)
        except Finding as finding:
            sentence = f"{harm.kind}, {harm.file}: {' '.join(words)}: {finding}"
            failure = finding.kind, sentence.replace(f"{self._place}/", "")
        if touched:
            self.prey.lay_out()
        return Answer(failure=failure, case={"kind": harm.kind, "file": harm.file, "status": end.status,
                                             "seconds": round(end.seconds, 3), "nbytes": end.nbytes})

    def _harm(self, copy: Path, target: str, order: Order, chance: random.Random) -> tuple[Damage, Conditions]:
        """Damage the copy, or choose conditions for the process."""
        if target == "process":
            kind = chance.choice(sorted(SURROUNDINGS))
            return Damage(kind, f"process of {order.words.split()[0]}"), SURROUNDINGS[kind](chance)
        harm = damage(copy, self.prey.outside / copy.name, self.prey.outside, order, chance)
        return harm, Conditions(without_rights) if harm.kept_from else Conditions()


def _clear(folder: Path) -> None:
    """Remove a case, including files without permissions."""
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o700)
    shutil.rmtree(folder)


if __name__ == "__main__":
    answer_seeds(Attacker)
