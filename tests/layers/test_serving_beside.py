"""Texts beside a training of the same model: each follows from the weights of one step, and neither disturbs the other.

test_versions.py tests the copies of the weights, test_server.py texts on the model's own share.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asynctile import DeviceError, Engine, StalledError, TornModelError
from asynctile.layers import GPT2, Trainer
from asynctile.layers.model import model_state_of
from asynctile.layers.requests import Token
from asynctile.layers.server import Server
from asynctile.layers.serving import Serving
from asynctile.layers.versions import Versions
from asynctile.runtime import Runtime
from asynctile.schedule.allowance import Allowance
from tests.laws import law
from tests.layers.serving import PROMPTS, SHAPE, text
from tests.layers.training import OPTIMIZER, Tensors, assert_same_tensors, batches_of, lively, states_of
from tests.settle import until

STEPS = 6
BATCHES = batches_of(SHAPE, STEPS)
ROOM = 8 << 20
FEW = SHAPE.config.states_nbytes // 5
PLACES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cpu": ({"device": "cpu"}, {"host_memory": ROOM}),
    "emulated": ({"device": "emulated"}, {"host_memory": ROOM, "device_memory": ROOM}),
    "under a cap": ({"device": "emulated", "device_memory": 2 * FEW}, {"host_memory": ROOM, "device_memory": FEW}),
}


def versions_of(trainer: Trainer) -> Versions:
    """Return the published weights of the model on the server's share."""
    (follow,) = model_state_of(trainer.model).followers
    return follow.__self__  # type: ignore[attr-defined]


async def written(server: Server, prompt: int) -> list[int]:
    return await text(server.generate(PROMPTS[prompt], max_new_tokens=6, seed=prompt))


async def expected() -> tuple[list[list[list[int]]], Tensors]:
    """Return the text of each prompt after each number of steps, with nothing beside; and the states at the end."""
    found = []
    async with Engine("cpu") as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, update="device")
        for number in range(STEPS + 1):
            async with trainer.model.serve() as server:
                found.append([await written(server, prompt) for prompt in range(len(PROMPTS))])
            if number < STEPS:
                await trainer.step(*BATCHES[number])
        return found, await states_of(trainer)


@pytest.fixture(scope="module")
def alone() -> tuple[list[list[list[int]]], Tensors]:
    return asyncio.run(expected())


@asynccontextmanager
async def scene(place: str) -> AsyncIterator[tuple[Trainer, Server]]:
    """Open a training on an engine, and a server of its model on a share that goes first."""
    options, lent = PLACES[place]
    async with Engine(**options) as engine, engine.share(**lent, interactive=True) as part:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, update="device")
        async with trainer.model.serve(part) as server:
            yield trainer, server
        assert part.statistics().host_used_bytes == 0
        assert (model_state_of(trainer.model).followers, model_state_of(trainer.model).readers) == ([], 0)


@pytest.mark.parametrize("place", [law("cpu"), "under a cap", law("emulated")])
async def test_each_text_beside_a_training_follows_from_the_weights_of_one_step(
    place: str, alone: tuple[list[list[list[int]]], Tensors]
) -> None:
    texts, end = alone
    assert len({str(one) for one in texts}) == STEPS + 1, "every step changes what is written"
    async with scene(place) as (trainer, server):
        is_over = False

        async def ask(prompt: int) -> int:
            """Write texts one after another; assert that each follows from some step, never an older one; return how many."""
            count = last = 0
            while not is_over:
                found = await written(server, prompt)
                fitting = [number for number in range(last, STEPS + 1) if texts[number][prompt] == found]
                assert fitting, f"no step from {last} on writes {found}"
                last, count = fitting[0], count + 1
            return count

        asking = [asyncio.create_task(ask(prompt)) for prompt in range(len(PROMPTS))]
        for batch in BATCHES:
            await trainer.step(*batch)
            await server.publish()
        is_over = True
        assert all(await asyncio.gather(*asking))
        assert await server.publish()
        assert [await written(server, prompt) for prompt in range(len(PROMPTS))] == texts[STEPS]
        assert_same_tensors(await states_of(trainer), end)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of further rounds that servers may take; one at first."""
    left, rounds = [1], Runtime.rounds

    @asynccontextmanager
    async def held(runtime: Runtime) -> AsyncIterator[Callable[[bool], bool]]:
        await until(lambda: left[0] > 0)
        left[0] -= 1
        async with rounds(runtime) as go_on:
            yield go_on

    monkeypatch.setattr(Runtime, "rounds", held)
    monkeypatch.setattr(Allowance, "goes_on", lambda *_, **more: False)
    return left


@asynccontextmanager
async def two_texts(
    rounds: list[int],
) -> AsyncIterator[tuple[Trainer, Server, AsyncGenerator[Token], AsyncGenerator[Token], list[int]]]:
    """Begin two texts of different versions; yield both with the first token of each."""
    async with scene("cpu") as (trainer, server):
        old = server.generate(PROMPTS[0], max_new_tokens=6, seed=0)
        first = [(await anext(old)).id]
        await trainer.step(*BATCHES[0])
        assert await server.publish(), "into the other copy"
        young = server.generate(PROMPTS[1], max_new_tokens=6, seed=1)
        asking = asyncio.ensure_future(anext(young))
        await until(lambda: bool(versions_of(trainer).newest.readers))
        rounds[0] = 2
        yield trainer, server, old, young, [*first, (await asking).id]


async def test_a_text_continues_with_the_weights_that_it_began_with(
    alone: tuple[list[list[list[int]]], Tensors], rounds: list[int]
) -> None:
    texts, _ = alone
    async with two_texts(rounds) as (trainer, server, old, young, first):
        await trainer.step(*BATCHES[1])
        assert not await server.publish(), "both are read"
        rounds[0] = 1000
        assert await written(server, 2) == texts[1][2]
        assert first[:1] + [token.id async for token in old] == texts[0][0]
        assert first[1:] + [token.id async for token in young] == texts[1][1]
        assert await server.publish()
        assert await written(server, 2) == texts[2][2]


async def test_lost_weights_end_only_the_texts_that_follow_from_them(
    alone: tuple[list[list[list[int]]], Tensors], rounds: list[int]
) -> None:
    texts, _ = alone
    async with two_texts(rounds) as (trainer, server, old, young, first):
        version = next(version for version in versions_of(trainer).all if version.number == 0)
        version.number = None
        rounds[0] = 1000
        with pytest.raises(TornModelError, match="the published weights were lost"):
            await text(old)
        assert first[1:] + [token.id async for token in young] == texts[1][1]
        assert await written(server, 2) == texts[1][2]


async def test_a_server_of_the_current_weights_keeps_them(alone: tuple[list[list[list[int]]], Tensors]) -> None:
    texts, _ = alone
    async with Engine("cpu") as engine, engine.share(host_memory=ROOM) as part:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, update="device")
        async with trainer.model.serve(part, weights="opened") as server:
            await trainer.step(*BATCHES[0])
            assert not await server.publish()
            assert await written(server, 0) == texts[0][0]


async def test_once_texts_are_played_memory_no_longer_grows_whatever_is_written_and_published() -> None:
    async with scene("cpu") as (trainer, server):
        await trainer.step(*BATCHES[0])
        await server.publish()
        share, used = versions_of(trainer).runtime, []
        for batch in BATCHES[1:]:
            await written(server, 0)
            await trainer.step(*batch)
            await server.publish()
            used.append(share.statistics().host_used_bytes)
        assert len(set(used[3:])) == 1 and len(used) > 4, "behind the second text of each copy, which is played"


async def test_invalid_ways_to_serve_beside_a_training_are_refused_and_disturb_nothing() -> None:
    async with Engine("cpu") as engine, Engine("cpu") as other:
        model: GPT2 = await lively(engine, SHAPE)
        with pytest.raises(ValueError, match="two engines"):
            model.serve(other)
        with pytest.raises(ValueError, match="weights is 'oldest', expected 'newest' or 'opened'"):
            model.serve(weights="oldest")
        async with engine.share(host_memory=ROOM) as part:
            server = model.serve(part)
            with pytest.raises(DeviceError, match="the server is not open"):
                await server.publish()
            async with server:
                await written(server, 0)
            with pytest.raises(DeviceError, match="the server is not open"):
                await written(server, 0)


async def test_a_share_that_ends_before_its_server_leaves_nothing_to_close() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        async with engine.share(host_memory=ROOM) as part:
            server = await model.serve(part).__aenter__()
            await written(server, 0)
        await server.aclose()
        trainer = Trainer(model, OPTIMIZER)
        assert (await trainer.step(*BATCHES[0])).step == 1
        assert not model_state_of(model).followers


async def test_nothing_more_is_published_for_a_server_that_could_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stalls(serving: Serving, error: Exception) -> None:
        raise StalledError("nothing has moved for 60 s")

    async with Engine("cpu") as engine, engine.share(host_memory=ROOM) as part:
        model = await lively(engine, SHAPE)
        server = await model.serve(part).__aenter__()
        monkeypatch.setattr(Serving, "end", stalls)
        with pytest.raises(StalledError):
            await server.aclose()
        assert not model_state_of(model).followers and part.statistics().host_used_bytes == 0
