"""The overlap of steps with a slow network: the rate that an exchange keeps to, and what the table makes of seconds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from asynctile.schedule.rates import CORES
from tests.nodes.meetings import SECRET, free_address

#: A core, as `asynctile info --measure` writes it.
CORE = f"""
title = "a core"
[devices]
kind = "cpu"
count = 1
memory_per_s = "{CORES.memory_per_s:.0f}B"
operation_s = 1e-6
flops_per_s = {{ fp32 = 1e11 }}
[ram]
memory = "8GiB"
updated_per_s = "{CORES.updated_per_s:.0f}B"
copied_per_s = "{CORES.copied_per_s:.0f}B"
"""


def test_tiles_of_a_paced_exchange_keep_to_the_rate(bench: Any) -> None:
    network, address, per_s = bench("bench_network"), free_address(), 20_000_000

    def held(node: int) -> float:
        with network.PacedExchange.meet(node, 2, address, SECRET, {}) as exchange:
            exchange.pace(per_s)
            rate: float = exchange.held(4 << 20)
            return rate

    with ThreadPoolExecutor(2) as pool:
        assert all(rate < 1.5 * per_s for rate in pool.map(held, range(2)))


def test_a_step_is_shown_beside_the_longer_time_and_the_sum(bench: Any) -> None:
    network = bench("bench_network")
    seconds = {None: [0.1], 0.5: [0.125], 1.0: [0.2], 2.0: [0.2]}
    found = network.Found(10_000_000, {None: None, 0.5: 2e8, 1.0: 1e8, 2.0: 5e7}, dict.fromkeys(seconds, 1e9), seconds)
    free, *rows = network.rows(found, dict.fromkeys(seconds, network.Clocked(0.1, 0.05)))
    assert free[:8] == ("no limit", None, 1000, pytest.approx(10), 100, None, None, None)
    assert [row[5:8] for row in rows] == [
        pytest.approx((100, 150, 0.5)), pytest.approx((100, 200, 0.0)), pytest.approx((200, 300, 1.0))]  # fmt: skip
    assert [row[9] for row in rows] == pytest.approx([1.25, 2, 2]) and {row[10] for row in rows} == {50}


def test_the_virtual_clock_predicts_longer_steps_over_slower_networks(bench: Any) -> None:
    network = bench("bench_network")
    fast, slow = (network.clocked(CORE, per_s, 4) for per_s in (1e10, 1e7))
    assert 0.01 < fast.alone <= fast.both < slow.alone / 5 and slow.alone <= slow.both
