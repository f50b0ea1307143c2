"""The alarm of a run on one of several nodes: when it ends the exchange, and with which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asynctile.execute import alarm
from asynctile.execute.alarm import Alarm
from asynctile.execute.workers.places import FAILED, OK, PENDING, POISONED
from tests.settle import turns, until


class Exchange:
    """An exchange that notes why it was ended."""

    failure: Any = None

    def abort(self, why: str) -> None:
        self.failure = why


@pytest.fixture
def exchange(monkeypatch: pytest.MonkeyPatch) -> Exchange:
    monkeypatch.setattr(alarm, "EVERY_S", 0.0)
    return Exchange()


def causes(entry: int) -> BaseException:
    return RuntimeError(f"entry {entry} failed")


async def test_the_first_failed_entry_ends_the_exchange(exchange: Exchange) -> None:
    statuses = np.array([OK, PENDING, PENDING, PENDING], np.int8)
    one = Alarm(exchange, lambda: statuses, causes)  # type: ignore[arg-type]
    await turns()
    assert exchange.failure is one.error is None
    statuses[1:] = POISONED, FAILED, FAILED
    await until(lambda: exchange.failure is not None)
    assert exchange.failure == str(one.error) == "entry 2 failed"


async def test_transfers_that_failed_with_the_exchange_are_no_news(exchange: Exchange) -> None:
    exchange.failure = "node 1 was lost"
    one = Alarm(exchange, lambda: np.array([FAILED], np.int8), causes)  # type: ignore[arg-type]
    await turns()
    assert one.error is None and exchange.failure == "node 1 was lost"


async def test_an_alarm_that_was_ended_looks_no_more(exchange: Exchange) -> None:
    one = Alarm(exchange, lambda: np.array([FAILED], np.int8), causes)  # type: ignore[arg-type]
    one.end()
    await turns()
    assert exchange.failure is one.error is None
