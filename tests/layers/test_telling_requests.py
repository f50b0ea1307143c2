"""Events and counts of requests for text: begin, first token, and every end. test_server.py tests the texts."""

from __future__ import annotations

import asyncio

import pytest

from asynctile import BudgetError, DeviceError, Engine, Statistics
from asynctile.events import CANCELLED, FAILED, FirstToken, RequestBegun, RequestDone
from asynctile.layers import GPT2
from asynctile.share import runtime_of
from tests.layers.serving import PROMPTS, SHAPE, page_nbytes_of
from tests.layers.test_telling import rest
from tests.layers.training import lively

PROMPT = PROMPTS[0]


async def named(engine: Engine) -> GPT2:
    model = await lively(engine, SHAPE)
    model.name = "chat"
    return model


def counted(statistics: Statistics) -> tuple[int, int]:
    return statistics.requests, statistics.request_tokens


async def test_a_request_is_told_when_it_begins_has_a_token_and_ends_with_its_times() -> None:
    async with Engine("cpu") as engine:
        model = await named(engine)
        reader = engine.events()
        async with model.serve(most=1) as server:
            for count in (3, 1):
                assert len([token async for token in server.generate(PROMPT, max_new_tokens=count, seed=1)]) == count
        after = engine.statistics()
    told = await rest(reader)
    assert [type(event) for event in told] == [RequestBegun, FirstToken, RequestDone] * 2
    begun, first, done = told[:3]
    assert isinstance(begun, RequestBegun) and isinstance(first, FirstToken) and isinstance(done, RequestDone)
    assert {event.share for event in told} == {"engine"} and begun.model == first.model == done.model == "chat"
    assert begun.request == first.request == done.request != told[-1].request  # type: ignore[attr-defined]
    assert begun.prompt_tokens == done.prompt_tokens == len(PROMPT)
    assert (done.reason, done.new_tokens, done.error) == ("length", 3, None)
    assert done.waited_s == begun.waited_s and done.first_token_s == first.seconds
    assert 0 < begun.waited_s < first.seconds < done.total_s
    assert counted(after) == (2, 4)
    assert after.request_s == sum(event.total_s for event in told if isinstance(event, RequestDone))


async def test_requests_on_a_share_are_told_and_counted_there() -> None:
    async with Engine("cpu", host_memory="64MiB") as engine, engine.share(host_memory="32MiB", name="chat") as part:
        model = await lively(part, SHAPE)  # type: ignore[arg-type]
        reader = engine.events()
        assert len([token async for token in model.generate(PROMPT, max_new_tokens=2)]) == 2
        assert (counted(part.statistics()), counted(engine.statistics())) == ((1, 2), (0, 0))
        assert {(await anext(reader)).share for _ in range(3)} == {"chat"}


async def test_a_request_without_a_reader_counts_as_cancelled_while_it_waited_or_wrote() -> None:
    async with Engine("cpu") as engine:
        model = await named(engine)
        reader = engine.events()
        async with model.serve(most=1) as server:
            writes = server.generate(PROMPT, max_new_tokens=SHAPE.config.block_size - len(PROMPT), seed=1)
            await anext(writes)
            waits = asyncio.create_task(anext(server.generate(PROMPT, max_new_tokens=2)))
            await asyncio.sleep(0)
            waits.cancel()
            await asyncio.wait([waits])
            await writes.aclose()
            assert len([token async for token in server.generate(PROMPT, max_new_tokens=1)]) == 1
    done = [event for event in await rest(reader) if isinstance(event, RequestDone)]
    assert done[0].reason == CANCELLED and done[0].new_tokens >= 1
    assert done[-1].reason == "length"
    assert all(event.reason == CANCELLED and event.first_token_s is None for event in done[1:-1])


async def test_a_failed_request_says_why() -> None:
    def broken(*args: object) -> None:
        raise FloatingPointError("it broke")

    async with Engine("cpu") as engine:
        model = await named(engine)
        reader, gelu = engine.events(), runtime_of(engine).device.kernels["gelu"]
        async with model.serve() as server:
            runtime_of(engine).device.kernels["gelu"] = broken
            with pytest.raises(DeviceError, match="it broke") as caught:
                await anext(server.generate(PROMPT, max_new_tokens=1))
            runtime_of(engine).device.kernels["gelu"] = gelu
    (done,) = [event for event in await rest(reader) if isinstance(event, RequestDone)]
    assert (done.reason, done.error, done.new_tokens) == (FAILED, str(caught.value), 0)


async def test_a_refused_request_is_not_counted() -> None:
    async with Engine("cpu") as engine:
        model = await named(engine)
        reader = engine.events()
        async with model.serve(cache=page_nbytes_of(model)) as server:
            with pytest.raises(BudgetError):
                await anext(server.generate(PROMPT, max_new_tokens=SHAPE.config.block_size - len(PROMPT)))
        assert counted(engine.statistics()) == (0, 0)
    assert await rest(reader) == []
