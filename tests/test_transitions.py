"""A failing test prints the last transitions of its tiers; a passing test prints none. Checked in a separate pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from asynctile.storage.arena import Arena
from asynctile.storage.ledger import Ledger
from tests.transitions import HEADING, PRINTED, TIERS, Transitions

ROOT = Path(__file__).resolve().parents[1]

ENGINES = '''
from asynctile import Engine
from tests.matmul import Matmul


async def test_earlier():
    work = Matmul(n=3)
    async with Engine("cpu", host_memory="1MiB") as engine:
        await work.prepare(engine)
    print("pytest reports a passing test that prints")


async def test_in_question():
    work = Matmul(n=3)
    async with Engine("emulated", device_memory=4 * work.nbytes, host_memory="1MiB") as engine:
        await work.prepare(engine)
        await work.run(engine)
    assert engine is None
'''


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the output of a session on a test that passes and one that fails, under the conftest of this folder."""
    folder = tmp_path_factory.mktemp("engines")
    (folder / "test_engines.py").write_text(ENGINES)
    options = ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", "-p", "no:cacheprovider", "-rP"]
    command = [sys.executable, "-m", "pytest", *options, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_failing_test_prints_the_last_transitions_of_every_tier_it_made(output: str) -> None:
    assert "1 failed, 1 passed" in output, output
    _, _, section = output.partition(f" {HEADING} ")
    lines = section.partition("====")[0].splitlines()[1:]
    tiers = [line for line in lines if not line.startswith(" ")]
    assert [line.split(",")[0] for line in tiers] == ["host_memory", "device_memory"]  # and none of the test before
    on_device = lines[lines.index(tiers[1]) :]
    assert on_device[0].endswith(f": the last {PRINTED}") and len(on_device) == 1 + PRINTED
    assert all(" -> " in line for line in on_device[1:]) and any(line.startswith("  c[") for line in on_device)


def test_a_passing_test_prints_no_transitions(output: str) -> None:
    _, _, section = output.partition("_ test_earlier _")
    assert "pytest reports a passing test that prints" in section, output
    assert HEADING not in section.partition("_ test_in_question _")[0]
    assert output.count(HEADING) == 1


def test_only_the_last_tiers_are_remembered() -> None:
    """Otherwise a test of hypothesis, which makes thousands of tiers, would keep all of their histories."""
    watching = Transitions()
    watching.pytest_sessionstart()
    try:
        for cap in range(1, 3 * TIERS):
            Ledger(Arena(cap, evictable=False, argument="host_memory"), None)
    finally:
        watching.pytest_sessionfinish()
    told = [*watching.told()]
    assert len(told) == TIERS
    assert told[-1] == f"host_memory, a cap of {3 * TIERS - 1} B: none"
