"""What is added up over a run; what a whole run says at its end is test_train.py's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asynctile.cli.summary import Sums
from asynctile.errors import AsynctileError
from tests.cli.conftest import Program


def sums_of(*lines: dict[str, Any]) -> Sums:
    numbered = [{"step": number, **line} for number, line in enumerate(lines, 1)]
    folder: Any = SimpleNamespace(metrics=SimpleNamespace(lines=lambda: numbered))
    return Sums.of(folder)


def test_a_run_was_stalled_for_its_part_of_the_steps_in_which_that_was_measured() -> None:
    sums = sums_of({"step_s": 2.0, "stall_s": 0.5}, {"step_s": 6.0, "stall_s": "nan"}, {"step_s": 2.0, "stall_s": 0.0})
    assert sums.step_s == 10.0 and sums.stalled == pytest.approx(0.125)


def test_tokens_are_what_was_trained_on_and_the_speed_is_of_all_positions() -> None:
    sums = sums_of({"tokens": 60, "step_s": 2.0, "tokens_per_s": 50.0}, {"tokens": 100, "step_s": 2.0, "tokens_per_s": 50.0})
    assert sums.tokens == 160 and sums.tokens_per_s == pytest.approx(50.0)


def test_where_no_stall_was_measured_none_is_told() -> None:
    assert sums_of({"step_s": 2.0, "stall_s": "nan"}).stalled is None
    assert sums_of().stalled is None


def test_a_model_that_writes_no_sample_is_an_error_that_names_the_run(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_sample(*args: Any, **options: Any) -> None:
        raise AsynctileError("300 logits are not finite: use another checkpoint")

    monkeypatch.setattr("asynctile.cli.session.sample", no_sample)
    status, _, err = train("--out", tmp_path / "run", "--lr", 0.5)
    said = f"{tmp_path / 'run'} writes no sample: 300 logits are not finite: use another checkpoint, or a --lr below 0.5"
    assert status == 2 and said in err
