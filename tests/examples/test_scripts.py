"""The examples that are programs: each does what its first lines say. The services are test_services.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def printed(name: str, tmp_path: Path) -> str:
    """What an example prints where every warning is an error, away from the checkout."""
    command = [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
    return done.stdout


def test_steps_under_timeouts_and_in_two_engines_have_the_bits_of_an_undisturbed_training(tmp_path: Path) -> None:
    assert re.fullmatch(
        r"[1-9]\d* timeouts, step [45] with loss 5\.\d+\ncancelled behind step [4-8]\nthe weights are the same bit for bit\n",
        printed("timeouts", tmp_path),
    )


def test_batches_of_a_loader_are_learned_in_its_order(tmp_path: Path) -> None:
    lines = re.findall(r"^step (\d+): loss (\d\.\d+), \d+ tokens/s$", printed("own_data", tmp_path), re.MULTILINE)
    assert [int(step) for step, _ in lines] == [*range(1, 13)]
    losses = [float(loss) for _, loss in lines]
    assert losses == sorted(losses, reverse=True)


def test_two_jobs_share_an_engine_and_a_third_is_refused(tmp_path: Path) -> None:
    lines = printed("two_jobs", tmp_path).splitlines()
    assert re.match(r"loss [45]\.\d+; answers \[b", lines[0])
    assert lines[1] == f"while both are lent, {1 << 20} bytes of the device are the engine's own"
    assert lines[2].startswith("a third share: device_memory of 1.00 MiB cannot lend a share of 2.00 MiB")
