"""Readers that leave before their text has ended, and servers, shares and engines that close under texts: nothing stays behind.

test_serving.py tests errors within a text.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from asynctile import DeviceError, Engine, Events
from asynctile.events import CANCELLED, RequestDone
from asynctile.layers import GPT2, serving
from asynctile.layers.requests import Request
from asynctile.loop.mailbox import Mailbox
from asynctile.share import runtime_of
from tests.layers.serving import PROMPTS, SHAPE, asked_of, held_by, hold, one_by_one, pages_made, text, texts
from tests.layers.training import lively
from tests.settle import HANG_S, settle, until


async def test_closing_a_server_or_an_engine_ends_its_readers() -> None:
    """They end at once, also while their next run waits for another program."""
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        async with model.serve(most=2) as server:
            await text(server.generate([1], max_new_tokens=39))  # the pages of the next text are there
            held = asyncio.create_task(runtime_of(engine).call(hold(engine)))
            reading = asyncio.gather(*(text(server.generate([1])) for _ in range(5)), return_exceptions=True)
            await until(lambda: asked_of(model) == 5)
            closing = asyncio.create_task(server.aclose())
            assert [type(error) for error in await reading] == [DeviceError] * 5
            assert all("server was closed" in str(error) for error in await reading)
            assert not closing.done()
            with pytest.raises(DeviceError, match="server is not open"):
                await text(server.generate([1]))
            held.cancel()
            await closing
        before = engine.statistics().request_tokens
        others = asyncio.create_task(consume(model))
        await until(lambda: engine.statistics().request_tokens > before)
    with pytest.raises(DeviceError, match="closed"):
        await others


async def test_a_request_from_another_loop_to_a_server_closed_meanwhile_is_refused() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        before = held_by(model)
        async with model.serve() as server:
            expected = await texts(server, max_new_tokens=9)
            late = server.generate([1])  # it has seen the server open
        with pytest.raises(DeviceError, match="the server was closed"):
            await text(late)
        assert held_by(model) == before
        async with server:
            assert await texts(server, max_new_tokens=9) == expected


async def test_a_waiting_request_whose_reader_has_gone_leaves_at_the_next_token(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[int] = []

    def watch(request: Request, logits: Any) -> Any:
        there.append(asked_of(model))
        return choose(request, logits)

    choose = Request.choose
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        async with model.serve(most=1) as server:
            monkeypatch.setattr(Request, "choose", watch)
            held = asyncio.create_task(runtime_of(engine).call(hold(engine)))
            asked = []
            for number in (1, 2, 3):
                asked.append(asyncio.create_task(text(server.generate([number], max_new_tokens=9))))
                await until(lambda: asked_of(model) == len(asked))
            asked[2].cancel()
            await asyncio.wait(asked[2:])
            held.cancel()
            assert [len(found) for found in await asyncio.gather(*asked[:2])] == [9, 9]
    assert there[1:9] == [2] * 8


@pytest.mark.parametrize("way", ["closed", "cancelled", "loop closed", "loop closed at once"])
async def test_a_request_that_nobody_reads_leaves_at_its_next_token(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = pages_made(monkeypatch)
    async with Engine("cpu") as engine:
        model, events = await lively(engine, SHAPE), engine.events()
        async with model.serve() as server:
            held = asyncio.create_task(runtime_of(engine).call(hold(engine)))
            await until(lambda: runtime_of(engine).busy.holder is not None)
            tokens: Any = server.generate([1], max_new_tokens=39)
            if way.startswith("loop closed"):
                taking = takes(monkeypatch) if way == "loop closed" else None
                await asyncio.to_thread(begun_elsewhere, tokens, model, taking)
            else:
                first = asyncio.create_task(anext(tokens))
                await until(lambda: asked_of(model))
            if way == "closed":
                other = asyncio.create_task(text(server.generate([2], max_new_tokens=39)))
                held.cancel()
                await first
                held = asyncio.create_task(runtime_of(engine).call(hold(engine)))
                await until(lambda: runtime_of(engine).busy.holder is not None and "hold" in runtime_of(engine).busy.holder)
                await tokens.aclose()
                assert len(await finished(other, held)) == 39
            elif way == "cancelled":
                first.cancel()
                await asyncio.wait([first])
            held.cancel()
            await until(lambda: not asked_of(model))
            await settle(engine)
            assert not pages[-1].taken
            del tokens  # the collector does not get it earlier
    assert await written_in_vain(events) <= (37 if way == "closed" else 1)


async def test_a_request_that_is_thrown_away_between_two_tokens_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector takes it: its loop, which would have closed it, is closed."""

    def begun() -> Any:
        loop = asyncio.new_event_loop()
        tokens = server.generate([1], max_new_tokens=39)
        loop.run_until_complete(anext(tokens))
        loop.close()
        return tokens

    choose, go_on, pages = Request.choose, threading.Event(), pages_made(monkeypatch)

    def slowly(request: Request, logits: Any) -> Any:
        if len(request.tokens) == 3:
            go_on.wait(HANG_S)
        return choose(request, logits)

    monkeypatch.setattr(serving, "AT_ONCE", 0)
    monkeypatch.setattr(Request, "choose", slowly)
    async with Engine("cpu") as engine:
        model, events = await lively(engine, SHAPE), engine.events()
        async with model.serve() as server:
            tokens = await asyncio.to_thread(begun)
            del tokens
            gc.collect()
            go_on.set()
            await until(lambda: not asked_of(model))
            await settle(engine)
            assert not pages[-1].taken
    assert await written_in_vain(events) <= 3


async def finished(task: asyncio.Task[Any], held: asyncio.Task[Any]) -> Any:
    held.cancel()
    return await task


async def written_in_vain(events: Events) -> int:
    """Return how many tokens were written for the only request of a closed engine that was given up."""
    (done,) = [event async for event in events if isinstance(event, RequestDone) and event.reason == CANCELLED]
    return done.new_tokens


def takes(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when a reader begins to wait for a token."""
    taking, take = threading.Event(), Mailbox.take

    async def taken(box: Mailbox[Any]) -> Any:
        taking.set()
        return await take(box)

    monkeypatch.setattr(Mailbox, "take", taken)
    return taking


def begun_elsewhere(tokens: Any, model: GPT2, taking: threading.Event | None) -> None:
    """Begin a text in a loop that is closed before its first token. taking: the loop runs until it is set; None: not at all."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the task that is destroyed while it waits
    first = loop.create_task(anext(tokens))
    loop.run_until_complete(asyncio.sleep(0))
    while not (asked_of(model) and (taking is None or taking.is_set())):
        if taking is not None:
            loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    del first


async def test_a_share_that_ends_waits_for_its_texts() -> None:
    async with Engine("cpu") as engine:
        async with (await lively(engine, SHAPE)).serve() as server:
            expected = await one_by_one(server, max_new_tokens=9)
        async with engine.share(host_memory="8MiB") as part:
            model = await lively(part, SHAPE)  # type: ignore[arg-type]

            async def ids() -> list[int]:
                return [token async for token in model.generate(PROMPTS[0], seed=0, max_new_tokens=9)]

            held = asyncio.create_task(runtime_of(part).call(hold(part)))
            writing = asyncio.create_task(ids())
            await until(lambda: asked_of(model))
            asyncio.get_running_loop().call_later(0.05, held.cancel)
        assert await writing == expected[0]


async def consume(model: GPT2) -> None:
    while True:
        async for _ in model.generate([1], max_new_tokens=39):
            pass


async def test_a_server_is_entered_once_at_a_time_and_ids_that_cannot_end_a_text_are_refused() -> None:
    async with Engine("cpu") as engine:
        server, most = (await lively(engine, SHAPE)).serve(), SHAPE.config.vocab_size - 1
        for _ in range(2):
            async with server:
                with pytest.raises(DeviceError, match="the server is open already"):
                    await server.__aenter__()
                with pytest.raises(ValueError, match=f"stop_ids has {most + 1}, but the model's ids are 0 to"):
                    server.generate([1], stop_ids=[0, most + 1])
                assert await text(server.generate([1], max_new_tokens=2, stop_ids=[most]))
