"""The record of rates: assumptions about a device that need not exist, and a link that is limited."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.schedule.pace import pace_of
from asynctile.schedule.rates import CORES, Rates, assumed


def test_assumed_rates_of_cores_ignore_the_link_and_those_of_gpus_depend_on_the_precision() -> None:
    assert assumed("cpu") == assumed("emulated") == CORES
    assert assumed("cuda") == assumed("cuda:3")
    found = [assumed("cuda:0", precision).flops_per_s for precision in ("fp32", "tf32", "bf16")]
    assert found == sorted(set(found))
    assert found[0] > CORES.flops_per_s


def test_a_limited_link_changes_no_other_rate() -> None:
    assert CORES.limited(None) == CORES
    assert CORES.limited(7.0) == replace(CORES, up_per_s=7.0, down_per_s=7.0)


def test_a_clock_follows_the_slower_direction_of_the_link_or_the_disk() -> None:
    rates = replace(CORES, up_per_s=3e9, down_per_s=2e9, disk_per_s=1e9)
    assert pace_of(rates, has_link=True).link_per_s == 2e9
    assert pace_of(rates, has_link=False).link_per_s == 1e9


@given(st.floats(1e-9, 1e18))
def test_a_rounded_rate_is_within_a_fifth_and_stays(value: float) -> None:
    found = replace(CORES, flops_per_s=value).rounded()
    assert 0.84 < found.flops_per_s / value < 1.19
    assert found.rounded() == found


def test_rates_come_back_from_json_equal() -> None:
    for rates in (CORES, CORES.rounded(), assumed("cuda:0", "bf16").rounded()):
        assert Rates.from_json(json.loads(json.dumps(rates.to_json()))) == rates


@pytest.mark.parametrize("found", [None, [], {}, {"flops_per_s": 1.0}, {**CORES.to_json(), "disk_per_s": None},
                                   {**CORES.to_json(), "disk_per_s": float("nan")}])  # fmt: skip
def test_invalid_rates_are_refused(found: object) -> None:
    with pytest.raises(ValueError, match="its rate"):
        Rates.from_json(found)
