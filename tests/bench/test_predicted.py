"""The comparison of predicted and measured times."""

from __future__ import annotations

from typing import Any

import pytest

from asynctile.measure.hardware import hardware
from asynctile.schedule.rates import CORES


def test_every_setting_differs_and_a_text_draws_six_more(bench: Any) -> None:
    settings = bench("bench_predicted").settings
    plain, drawn, again = (list(map(str, settings(draw))) for draw in (None, "32b48cc", "32b48cc"))
    assert len(set(plain)) == len(plain) == 15 and drawn == again and drawn[:15] == plain and len(drawn) == 21


@pytest.mark.parametrize("number", [0, 2, 11])
def test_a_setting_is_predicted_without_a_step(bench: Any, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    predicted = bench("bench_predicted")
    setting = list(predicted.settings(None))[number]
    assert predicted.predicted_s(setting, CORES, hardware("laptop")) > 1e-3
