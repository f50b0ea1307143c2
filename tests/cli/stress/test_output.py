"""The summary of stress: a row for each kind of mishap of nodes."""

from __future__ import annotations

import pytest

from asynctile.cli.stress.output import summary
from asynctile.cli.stress.settings import StressSettings
from asynctile.cli.stress.tally import Tally


def test_the_summary_tells_how_often_nodes_were_disturbed_and_how_soon_they_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    tally.count({"nodes": {"killed": 4, "silenced": 1}, "too_late": 2})
    tally.reach({"noticed_s": {"killed": 0.024, "silenced": 30.11}})
    summary(StressSettings.of({"rounds": 5, "scenario": ["nodes"]}), tally)
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["nodes", "disturbed 5 times; too late, and drawn again: 2"] in rows
    assert ["killed", "4 times, noticed within 0.02 s"] in rows and ["silenced", "1 times, noticed within 30.11 s"] in rows
