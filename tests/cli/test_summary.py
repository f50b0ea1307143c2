"""The totals of a run. test_train.py tests the summary at the end of a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asynctile.cli.totals import Sums
from asynctile.errors import AsynctileError, BudgetError
from tests.cli.conftest import Program


def sums_of(*lines: dict[str, Any]) -> Sums:
    return Sums.of({"step": number, **line} for number, line in enumerate(lines, 1))


def test_the_stall_of_a_run_is_its_part_of_the_steps_that_measured_it() -> None:
    sums = sums_of({"step_s": 2.0, "stall_s": 0.5}, {"step_s": 6.0, "stall_s": "nan"}, {"step_s": 2.0, "stall_s": 0.0})
    assert sums.step_s == 10.0 and sums.stalled == pytest.approx(0.125)


def test_tokens_count_trained_positions_and_the_speed_counts_all_positions() -> None:
    sums = sums_of({"tokens": 60, "step_s": 2.0, "tokens_per_s": 50.0}, {"tokens": 100, "step_s": 2.0, "tokens_per_s": 50.0})
    assert sums.tokens == 160 and sums.tokens_per_s == pytest.approx(50.0)


def test_no_stall_is_reported_where_none_was_measured() -> None:
    assert sums_of({"step_s": 2.0, "stall_s": "nan"}).stalled is None
    assert sums_of().stalled is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AsynctileError("300 logits are not finite: use another checkpoint"),
         "300 logits are not finite: use another checkpoint, or a --lr below 0.5"),
        (BudgetError("a text needs 1 MiB; raise host_memory", 1 << 20), "a text needs 1 MiB; raise --host-memory\n"),
    ],
)  # fmt: skip
def test_a_model_that_writes_no_sample_raises_an_error_that_names_the_run(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: AsynctileError, said: str
) -> None:
    async def no_sample(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr("asynctile.cli.session.sample", no_sample)
    status, _, err = train("--out", tmp_path / "run", "--lr", 0.5)
    assert status == 2 and f"{tmp_path / 'run'} writes no sample: {said}" in err
