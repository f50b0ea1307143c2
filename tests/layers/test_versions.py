"""Copies of a training model's weights on another share: the steps they belong to, and that they disturb nobody.

test_serving_beside.py tests their readers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from asynctile import BudgetError, Engine, StalledError, TierError, TornModelError
from asynctile.layers import Trainer
from asynctile.layers.model import model_state_of
from asynctile.layers.versions import EFFORT, Version, Versions
from asynctile.share import Share, runtime_of
from tests.execute.interleaving import SHORT
from tests.layers.training import OPTIMIZER, Tensors, assert_same_tensors, batches_of, lively, states_of

BATCHES = batches_of(SHORT, 5)
#: Caps of a share: enough for both versions, or for a few of their tiles on the device.
ALL, FEW = 4 << 20, SHORT.config.states_nbytes // 6


@dataclass
class Scene:
    engine: Engine
    part: Share
    trainer: Trainer
    versions: Versions

    async def publish(self) -> bool:
        return await runtime_of(self.engine).call(self.versions.publish())

    async def weights(self, version: Version) -> Tensors:
        values = await runtime_of(self.part).read_all(list(version.tiles()))
        names = [tile.name for tile in version.tiles()]
        return dict(zip(names, values, strict=True))

    async def current(self) -> Tensors:
        tiles = list(model_state_of(self.trainer.model).weights())
        return dict(zip([tile.name for tile in tiles], await runtime_of(self.engine).read_all(tiles), strict=True))


@pytest.fixture(params=["cpu", "emulated", "under a cap"])
def place(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of an engine, and caps of a share of it."""
    if request.param == "cpu":
        return {"device": "cpu"}, {"host_memory": ALL}
    if request.param == "emulated":
        return {"device": "emulated"}, {"host_memory": ALL, "device_memory": ALL}
    return {"device": "emulated", "device_memory": 2 * FEW}, {"host_memory": ALL, "device_memory": FEW}


@asynccontextmanager
async def scene(place: tuple[dict[str, Any], dict[str, Any]], **options: Any) -> AsyncIterator[Scene]:
    """Open a training, and versions of its model on a share that follow every step."""
    async with Engine(**place[0]) as engine, engine.share(**place[1]) as part:
        trainer = Trainer(await lively(engine, SHORT), OPTIMIZER, update="device")
        versions = Versions(model_state_of(trainer.model), runtime_of(part), **options)
        await runtime_of(engine).call(versions.open())
        yield Scene(engine, part, trainer, versions)
        await runtime_of(engine).call(versions.close())
        assert part.statistics().host_used_bytes == 0
        assert not model_state_of(trainer.model).followers


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish every step."""
    monkeypatch.setattr("asynctile.layers.versions.EFFORT", 1e9)


async def test_after_each_step_the_newest_version_has_its_weights(place: Any, at_once: None) -> None:
    async with scene(place) as found:
        for number, batch in enumerate(BATCHES):
            newest = found.versions.newest
            assert newest.number == number
            assert_same_tensors(await found.weights(newest), await found.current())
            await found.trainer.step(*batch)


async def test_a_version_being_read_stays_unchanged_and_no_third_is_made(place: Any, at_once: None) -> None:
    async with scene(place) as found:
        first = found.versions.newest
        first.readers, before = 1, await found.weights(first)
        await found.trainer.step(*BATCHES[0])
        second = found.versions.newest
        assert second is not first
        second.readers, between = 1, await found.weights(second)
        await found.trainer.step(*BATCHES[1])
        assert await found.publish() is False
        assert found.versions.newest is second
        assert_same_tensors(await found.weights(first), before)
        assert_same_tensors(await found.weights(second), between)
        first.readers = 0
        assert await found.publish() is True
        assert found.versions.newest is first
        assert_same_tensors(await found.weights(first), await found.current())


async def test_steps_are_not_published_if_that_would_take_more_than_its_part_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("asynctile.layers.versions.perf_counter", lambda: now[0])
    async with scene(({"device": "cpu"}, {"host_memory": ALL})) as found:
        store = runtime_of(found.part).store

        async def slow(tiles: Any) -> None:
            await store(tiles)
            now[0] += 1.0

        monkeypatch.setattr(runtime_of(found.part), "store", slow)
        await found.trainer.step(*BATCHES[0])
        assert found.versions.newest.number == 1, "the one before took no time"
        for seconds, number in ((0.9 / EFFORT, 1), (0.2 / EFFORT, 3)):
            now[0] += seconds
            await found.trainer.step(*BATCHES[number])
            assert found.versions.newest.number == number


async def test_a_failing_publication_is_tried_no_more_often_than_a_successful_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share that hangs must not cost a training the time limit of a publication at every step."""
    now, tries = [100.0], 0
    monkeypatch.setattr("asynctile.layers.versions.perf_counter", lambda: now[0])
    async with scene(({"device": "cpu"}, {"host_memory": ALL})) as found:

        async def hangs(tiles: Any) -> None:
            nonlocal tries
            tries += 1
            now[0] += 60.0
            raise StalledError("nothing has moved for 60 s")

        monkeypatch.setattr(runtime_of(found.part), "store", hangs)
        for seconds, expected in ((0.0, 1), (0.9 / EFFORT * 60, 1), (0.2 / EFFORT * 60, 2)):
            now[0] += seconds
            await found.trainer.step(*BATCHES[tries])
            assert tries == expected


@pytest.mark.parametrize("error", [TierError("no room"), TornModelError("lost")])
async def test_an_error_while_publishing_does_not_reach_the_training(
    error: Exception, at_once: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(({"device": "cpu"}, {"host_memory": ALL})) as found:

        async def broken(tiles: Any) -> None:
            raise error

        before = found.versions.newest
        with monkeypatch.context() as patched:
            patched.setattr(runtime_of(found.part), "store", broken)
            assert (await found.trainer.step(*BATCHES[0])).step == 1
        assert found.versions.newest is before
        assert "the weights of step 1 could not be published" in caplog.text
        await found.trainer.step(*BATCHES[1])
        assert found.versions.newest is not before


async def test_versions_closed_during_a_publication_leave_nothing_behind(place: Any, at_once: None) -> None:
    async with scene(place) as found:
        read_all = runtime_of(found.engine).read_all

        async def closed_meanwhile(tiles: Any) -> Any:
            values = await read_all(tiles)
            await found.versions.close()
            return values

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runtime_of(found.engine), "read_all", closed_meanwhile)
            assert (await found.trainer.step(*BATCHES[0])).step == 1
        assert found.part.statistics().host_used_bytes == 0
        assert await found.publish() is False
        await runtime_of(found.engine).call(found.versions.open())
        assert_same_tensors(await found.weights(found.versions.newest), await found.current())


async def test_training_has_the_same_bits_with_and_without_versions(place: Any, at_once: None) -> None:
    async with scene(place) as found:
        flags = [(await found.trainer.step(*batch)).played for batch in BATCHES]
        assert flags[2:] == [True, True, True], "what is read behind a step leaves it in play"
        one = await states_of(found.trainer)
    async with Engine(device="cpu") as engine:
        alone = Trainer(await lively(engine, SHORT), OPTIMIZER, update="device")
        for batch in BATCHES:
            await alone.step(*batch)
        assert_same_tensors(one, await states_of(alone))


async def test_versions_that_do_not_follow_stay_unchanged_and_take_half_the_room(at_once: None) -> None:
    place: Any = {"device": "cpu"}, {"host_memory": ALL}
    async with scene(place, follows=False) as found:
        before, used = await found.current(), found.part.statistics().host_used_bytes
        await found.trainer.step(*BATCHES[0])
        (only,) = found.versions.all
        assert_same_tensors(await found.weights(only), before)
    async with scene(place) as found:
        await found.trainer.step(*BATCHES[0])
        assert found.part.statistics().host_used_bytes == 2 * used


async def test_a_share_too_small_for_both_versions_is_refused_before_anything_is_copied() -> None:
    async with Engine(device="cpu") as engine, engine.share(host_memory=int(1.5 * SHORT.config.states_nbytes / 3)) as part:
        model = await lively(engine, SHORT)
        with pytest.raises(BudgetError) as refused:
            await runtime_of(engine).call(Versions(model_state_of(model), runtime_of(part)).open())
        assert part.statistics().host_used_bytes == 0
    async with Engine(device="cpu") as engine, engine.share(host_memory=refused.value.floor) as part:
        model = await lively(engine, SHORT)
        await runtime_of(engine).call(Versions(model_state_of(model), runtime_of(part)).open())


async def test_a_torn_model_is_not_published() -> None:
    async with Engine(device="cpu") as engine, engine.share(host_memory=ALL) as part:
        model = await lively(engine, SHORT)
        model_state_of(model).torn = "torn on purpose"
        with pytest.raises(TornModelError, match="cannot serve: torn on purpose"):
            await runtime_of(engine).call(Versions(model_state_of(model), runtime_of(part)).open())
