"""The collector of cyclic garbage rests while plans are made, and afterwards is as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress

import pytest

from asynctile import Engine
from asynctile.collector import without_collections
from asynctile.share import runtime_of


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    """Leave the collector on, whatever a test does."""
    yield
    gc.enable()


def test_the_collector_rests_until_the_last_plan_is_made_also_after_an_error() -> None:
    with without_collections():
        with suppress(KeyError), without_collections():
            raise KeyError
        assert not gc.isenabled(), "one plan is still being made"
    assert gc.isenabled()


def test_a_collector_that_the_program_has_turned_off_stays_off() -> None:
    gc.disable()
    with without_collections():
        pass
    assert not gc.isenabled()


async def test_an_engine_plans_without_collections_and_gives_the_collector_back() -> None:
    async with Engine("cpu") as engine:
        runtime = runtime_of(engine)

        async def planned() -> bool:
            return await runtime.compute(gc.isenabled)

        assert not await runtime.call(planned())
    assert gc.isenabled()
