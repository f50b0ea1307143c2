"""The rate of the link that bench_stream.py emulates."""

from __future__ import annotations

from typing import Any

import pytest


def test_the_rate_of_the_link_follows_from_the_resident_step_alone(bench: Any) -> None:
    found = bench("bench_stream")
    assert found.rate_of(0.25, 2.0048) == pytest.approx(246.3e6, rel=1e-3)
    assert found.rate_of(0.10, 2.0429) == pytest.approx(342.6e6, rel=1e-3)
    assert found.rate_of(0.25, 1.0024) == pytest.approx(2 * 246.3e6, rel=1e-3)


def test_every_cap_with_a_target_has_a_link(bench: Any) -> None:
    found = bench("bench_stream")
    assert found.LEAST.keys() == found.BUSIER_NBYTES.keys()
