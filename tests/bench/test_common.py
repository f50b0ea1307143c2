"""Options of the benchmarks, and the name of the measured commit."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.layers import GPT2Config
from tests.bench.shell import run


@pytest.mark.parametrize(
    ("given", "rounds", "steps", "starts"),
    [
        ([], 5, 2, None),
        (["--against", "tree"], 2, 1, 9),
        (["--against", "tree", "--rounds", "7", "--starts", "6"], 7, 1, 6),
    ],
)
def test_against_another_commit_the_defaults_for_repeats_are_other_ones(
    bench: Any, monkeypatch: pytest.MonkeyPatch, given: list[str], rounds: int, steps: int, starts: int | None
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_step.py", *given])
    options = bench("common").arguments("", {"starts": 9, "rounds": 2, "steps": 1}, rounds=5, steps=2)
    assert (options.rounds, options.steps, options.starts) == (rounds, steps, starts)


def test_a_benchmark_without_its_library_ends_in_one_line(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["bench/bench_small.py"])
    said = r"bench_small.py compares with no_such_torch, which is not installed; pip install '.\[reference\]'"
    with pytest.raises(SystemExit, match=said):
        bench("common").library("no_such_torch")
    (tmp_path / "broken_torch.py").write_text("import no_such_part")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_part"):
        bench("common").library("broken_torch")


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_changed_checkout_says_so_and_new_results_are_no_change(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commit = bench("common").commit
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit(tmp_path) == "unknown"
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    (tmp_path / "bench" / "results").mkdir(parents=True)
    files = [tmp_path / "bench" / "results" / "old.md", tmp_path / "source.py"]
    for file in files:
        file.touch()
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        assert run("git", *command, cwd=tmp_path).returncode == 0
    found = run("git", "rev-parse", "--short", "HEAD", cwd=tmp_path).stdout.strip()
    files[0].write_text("measured again")
    assert commit(tmp_path) == found
    files[1].write_text("changed")
    assert commit(tmp_path) == f"{found} with uncommitted changes"


async def test_the_program_of_a_capped_step_is_the_same_before_and_after_it(bench: Any) -> None:
    common = bench("common")
    config = GPT2Config(n_layer=2, n_head=2, n_embd=64, block_size=16, vocab_size=80)
    async with Engine("emulated", device_memory=config.states_nbytes // 3) as engine:
        trainer = await common.trainer_on(engine, config, tile=32)
        program = await common.program_of(trainer, 2, 16)
        await trainer.step(*common.batch(config, 2, 16))
        assert program.name == "step" and await common.program_of(trainer, 2, 16) is program
