"""Lose a worker or a machine of Ray at a random moment, in as many runs as wanted, and compare the bits with one process.

    .venv-ray/bin/python -m tests.ray.losses [--rounds 10] [--seed 1]

`make ray` makes the environment, and loses one of each. A round takes about two minutes and prints a line. A run that does not
end, has other bits or leaves a worker behind is an error.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.cli.test_nodes import digests
from tests.ray.clusters import LOSSES, SLOW_S, STEPS, alone, cluster, fit_with_a_loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        (undisturbed := Path(name) / "alone").mkdir()
        expected = alone(undisturbed)
        for number in range(options.rounds):
            (folder := Path(name) / str(number)).mkdir()
            # At least one slow step is left then, so that no loss comes too late.
            lost, step, after_s = chance.choice(LOSSES), chance.randrange(1, STEPS - 1), chance.uniform(0, SLOW_S)
            began_s = time.monotonic()
            with cluster() as made:
                result = fit_with_a_loss(made, folder, lost, step, after_s)
            assert result.metrics["step"] == STEPS and digests(folder / "run") == expected, f"round {number} has other bits"
            took_s = time.monotonic() - began_s
            print(f"round {number}: lost a {lost} {after_s:.2f} s after step {step}; done in {took_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
