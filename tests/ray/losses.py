"""Lose a worker or a machine of Ray at a random moment, in as many runs as wanted, and compare the bits with one process.

    .venv-ray/bin/python -m tests.ray.losses [--rounds 50] [--seed 1] [--write FILE]

`make ray` makes the environment, and has one of each loss. One cluster of two machines, a worker on each, lives through all
rounds, and a machine that was lost is replaced. A round takes about half a minute, twice as long if a worker is stopped, and
prints a line. A round fails if the loss is noticed too late or not named, if the run does not end or has other bits, or if a
worker is left. --write: a file for the rounds and their figures, written anew after each round.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from asynctile.layers.training_state import surroundings
from asynctile.storage.folder import write_json
from tests.cli.test_nodes import digests
from tests.ray.clusters import LOSSES, SETTINGS, STEPS, add_machine, alone, cluster, fit_with_a_loss, until_none_is_left
from tests.ray.witness import SLOW_S

#: Seconds in which a worker that is left must have ended, or Ray have named the loss.
WITHIN_S = {"killed worker": 2.0, "killed machine": 60.0, "stopped worker": 60.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    chance, done, lost = random.Random(options.seed), list[dict[str, Any]](), ""
    with tempfile.TemporaryDirectory() as name, cluster(workers_each=1) as made:
        (undisturbed := Path(name) / "alone").mkdir()
        expected = alone(undisturbed)
        for number in range(options.rounds):
            (folder := Path(name) / str(number)).mkdir()
            # Ray takes up to 20 s to count a new machine, so two rounds in a row cannot lose one.
            lost = chance.choice([one for one in LOSSES if one != "killed machine" or one != lost])
            done.append(_round(made, folder, expected, lost, chance))
            print(f"round {number}: " + ", ".join(f"{key} {value}" for key, value in done[-1].items()), flush=True)
            if options.write is not None:
                write_json(options.write, _report(vars(options), done))
    return int(any("failure" in one for one in done))


def _round(made: Any, folder: Path, expected: Mapping[str, bytes], lost: str, chance: random.Random) -> dict[str, Any]:
    """Do a run on two workers, which has a loss; return what came of it."""
    # At least one slow step is left then, so that no loss comes too late.
    which, step, after_s = chance.randrange(2), chance.randrange(1, STEPS - 1), chance.uniform(0, SLOW_S)
    count, began_s = (1, 2) if lost == "killed machine" else 2, time.monotonic()
    found: dict[str, Any] = {"loss": lost, "step": step, "after_s": round(after_s, 2)}
    try:
        recovery = fit_with_a_loss(made, folder, count, lost, which=which, step=step, after_s=after_s)
        found |= {
            "noticed_s": round(recovery.noticed_s, 2), "by": recovery.by, "went_on_s": round(recovery.went_on_s, 2),
        }  # fmt: skip
        assert recovery.noticed_s <= WITHIN_S[lost], f"it was noticed after more than {WITHIN_S[lost]:g} s"
        assert recovery.result.metrics["step"] == STEPS and digests(folder / "run") == expected, "other bits"
        until_none_is_left()
    except Exception as error:
        found["failure"] = f"{type(error).__name__}: {error}"
    for _ in range(2 - len(made.worker_nodes)):
        add_machine(made, workers_each=1)
    return {**found, "took_s": round(time.monotonic() - began_s, 1)}


def _report(options: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the surroundings, the rounds, and the largest and the median of the figures of each loss."""
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in done:
        for figure in ("noticed_s", "went_on_s", "took_s"):
            if figure in one:
                figures[one["loss"]][figure].append(one[figure])
    losses = {
        lost: {"rounds": len(own["took_s"]), **{
            figure: {"most": max(values), "median": round(statistics.median(values), 2)} for figure, values in own.items()}}
        for lost, own in sorted(figures.items())
    }  # fmt: skip
    return {
        "asynctile": version("asynctile"), "ray": version("ray"), "python": sys.version.split()[0],
        "system": platform.platform(), "cores": os.cpu_count(), "libraries": surroundings(),
        "options": {"rounds": options["rounds"], "seed": options["seed"]}, "settings": SETTINGS, "losses": losses,
        "failures": [one for one in done if "failure" in one], "rounds": list(done),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
