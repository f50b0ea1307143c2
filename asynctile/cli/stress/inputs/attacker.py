"""The process of scenario `inputs`: it copies files, damages them, forks a command and judges the outcome.

Started with `python -m asynctile.cli.stress.inputs.attacker FOLDER`. It reads one seed per line and answers each with a line of
JSON. It imports everything and loads every kernel before the first fork, starts no thread, and ends when its input does.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from asynctile.cli.stress.finding import Finding, Kind
from asynctile.cli.stress.inputs.bystanders import changes, survey
from asynctile.cli.stress.inputs.damage import Damage, damage
from asynctile.cli.stress.inputs.prey import Order, Prey, draw_order, draw_target
from asynctile.cli.stress.inputs.standing import RunStanding
from asynctile.cli.stress.inputs.surroundings import SURROUNDINGS, Conditions, without_rights
from asynctile.cli.stress.inputs.trial import Bench
from asynctile.cli.stress.inputs.verdict import judge, judge_saved
from asynctile.kernels.cpu import warm

__all__ = ["Attacker", "Case", "main"]

#: Modules that commands import when they need them.
_IMPORTED = ("asynctile.cli.evaluate", "asynctile.cli.generate", "asynctile.cli.plan", "asynctile.cli.train")
#: Made to look missing: drawing with it would take half of the time of a case, and pictures are written like all other files.
_DONE_WITHOUT = "matplotlib"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case and its outcome. file: as the table names it. failure: (kind, sentence), or None."""

    kind: str
    file: str
    command: str
    status: int
    seconds: float
    nbytes: int
    failure: tuple[Kind, str] | None = None


class Attacker:
    """Plays cases in `folder`, which exists and is empty."""

    def __init__(self, folder: Path) -> None:
        self._place = folder.absolute() / "place"
        home = self._place / "home"
        home.mkdir(parents=True)
        self._bench = Bench(home)
        prey = self._place / "prey"
        prey.mkdir()
        self.prey = Prey(prey, lambda words: self._bench.run(words, Conditions()))

    def play(self, seed: int) -> Case:
        """Play one case, with all randomness from the seed."""
        chance = random.Random(f"inputs {seed}")
        target = draw_target(chance)
        order = draw_order(chance, target)
        folder = self._place / "case"
        folder.mkdir()
        try:
            return self._play(folder, target, order, chance)
        finally:
            _clear(folder)

    def _play(self, folder: Path, target: str, order: Order, chance: random.Random) -> Case:
        original = self.prey.original(target)
        copy, new = folder / original.name, folder / "new"
        shutil.copytree(original, copy)
        harm, around = self._harm(copy, target, order, chance)
        written = {"it": copy, "new": new, None: None}[order.writes]
        words = order.words.format(it=copy, new=new, text=self.prey.text, shape=self.prey.shape).split()
        before, stood = survey(self._place, but=written), RunStanding.of(copy)
        end = self._bench.run(words, around)
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
        return Case(kind=harm.kind, file=harm.file, command=words[0], status=end.status, seconds=round(end.seconds, 3),
                    nbytes=end.nbytes, failure=failure)  # fmt: skip

    def _harm(self, copy: Path, target: str, order: Order, chance: random.Random) -> tuple[Damage, Conditions]:
        """Damage the copy, or choose conditions for the process."""
        if target == "process":
            kind = chance.choice(sorted(SURROUNDINGS))
            return Damage(kind, f"process of {order.words.split()[0]}"), SURROUNDINGS[kind](chance)
        harm = damage(copy, self.prey.outside / copy.name, self.prey.outside, order, chance)
        return harm, Conditions(without_rights) if harm.kept_from else Conditions()


def main(folder: Path) -> None:
    """Play a case for each seed from stdin, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # stress handles Ctrl-C and then closes this stdin
    for name in _IMPORTED:
        importlib.import_module(name)
    sys.modules[_DONE_WITHOUT] = None  # type: ignore[assignment]
    warm()
    attacker = Attacker(folder)
    for line in sys.stdin:
        print(json.dumps(asdict(attacker.play(int(line)))), flush=True)


def _clear(folder: Path) -> None:
    """Remove a case, including files without permissions."""
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o700)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
