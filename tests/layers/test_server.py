"""A server of texts: a text is the same in any company and under any cap, and no request disturbs another by its end."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import BudgetError, Engine
from asynctile.layers import GPT2, Trainer, serving
from asynctile.layers.floor import floor_demand
from asynctile.layers.model import model_state_of
from asynctile.layers.requests import Request, Token
from asynctile.share import runtime_of
from tests.laws import covering
from tests.layers.serving import (
    PROMPTS,
    SHAPE,
    asked_of,
    held_by,
    one_by_one,
    page_nbytes_of,
    pages_made,
    text,
    texts,
    watched,
)
from tests.layers.training import OPTIMIZER, lively
from tests.settle import settle, until

CONFIG = SHAPE.config


async def expected() -> list[list[int]]:
    """Return the text of each prompt written alone, by coroutines, on an engine with room for all."""
    async with Engine("cpu") as engine:
        engine.plays = False
        async with (await lively(engine, SHAPE)).serve() as server:
            return await one_by_one(server, max_new_tokens=9)


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    return asyncio.run(expected())


@pytest.mark.parametrize("at_once", [0, serving.AT_ONCE], ids=["chosen in a thread", "chosen on the loop"])
async def test_a_text_is_the_same_alone_and_in_any_company(
    alone: list[list[int]], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "AT_ONCE", at_once)
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        for most in (1, 2, 3, 16):
            async with model.serve(most=most) as server:
                assert await texts(server, max_new_tokens=9) == alone
                assert await one_by_one(server, max_new_tokens=9) == alone
        async with model.serve(cache=7 * page_nbytes_of(model)) as server:  # pages with other numbers each time
            for _ in range(3):
                assert await texts(server, max_new_tokens=9) == alone


@pytest.mark.parametrize(("device", "prefetch"), covering(["emulated", "cpu"], [0, 1, 2], few=2))
async def test_a_text_and_its_logits_are_the_same_under_the_smallest_caps(
    alone: list[list[int]], tmp_path: Path, device: str, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the floor, over a spill folder, where pages are loaded and evicted as weights are."""
    seen = watched(monkeypatch)
    floor = floor_demand(CONFIG, SHAPE.tile)
    caps: dict[str, Any] = {"host_memory": floor.rounded(4096).alone().floor_nbytes, "spill": tmp_path, "prefetch": prefetch}
    if device == "emulated":
        caps["device_memory"] = floor.floor_nbytes
    async with Engine(device, **caps) as engine:
        model = await lively(engine, SHAPE)
        async with model.serve() as server:
            assert await texts(server, max_new_tokens=9) == alone
        statistics = engine.statistics()
    assert statistics.spill_read_bytes > 100 * model.config.parameter_count
    async with Engine("cpu") as engine, (await lively(engine, SHAPE)).serve() as server:
        count = len(seen)
        await one_by_one(server, max_new_tokens=9)
    assert len(seen) == count > 30 and all(len(logits) == 1 for logits in seen.values())


async def test_a_text_ends_at_its_length_or_at_block_size_and_says_so() -> None:
    async with Engine("cpu") as engine, (await lively(engine, SHAPE)).serve() as server:
        found = [token async for token in server.generate([1, 2], max_new_tokens=3, seed=1)]
        assert [token.finish_reason for token in found] == [None, None, "length"]
        found = [token async for token in server.generate([1] * 35, max_new_tokens=100, seed=1)]
        assert [token.finish_reason for token in found] == [None] * 4 + ["length"]


async def test_memory_is_given_back_when_a_server_closes_and_when_nobody_generates() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        before = held_by(model)
        async with model.serve() as server:
            tokens = server.generate([1, 2], max_new_tokens=30)
            await anext(tokens)
            assert held_by(model) >= before + 4 * page_nbytes_of(model)
            await tokens.aclose()
            await until(lambda: not asked_of(model))
            assert held_by(model) >= before + 4 * page_nbytes_of(model)
        assert held_by(model) == before
        await text_of_model(model)
        await until(lambda: held_by(model) == before)


async def text_of_model(model: GPT2, **options: Any) -> list[int]:
    return [token async for token in model.generate([1, 2, 3], **{"max_new_tokens": 9, "seed": 0, **options})]


@pytest.mark.parametrize("times", [1, 3])
async def test_closing_a_server_is_complete_however_often_it_is_cancelled(times: int) -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        standing = engine.statistics().host_used_bytes
        for turns in range(4):
            server = await model.serve().__aenter__()
            await text(server.generate(PROMPTS[0], max_new_tokens=2))
            assert engine.statistics().host_used_bytes > standing
            closing = asyncio.create_task(server.aclose())
            for _ in range(turns + 1):
                await asyncio.sleep(0)
            for _ in range(times):
                closing.cancel()
                await asyncio.sleep(0)
            await asyncio.wait([closing])
            await runtime_of(engine).synchronize()
            assert engine.statistics().host_used_bytes == standing


async def test_a_server_thrown_away_with_its_loop_gives_its_memory_back() -> None:
    """Nobody can wait for the memory there, and a block inside could not end either."""

    async def cannot_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            asyncio.get_running_loop()

    async def use() -> None:
        async with model.serve() as server:
            await text(server.generate(PROMPTS[0], max_new_tokens=2))
            used.append(engine.statistics().host_used_bytes)
            await cannot_end()

    def elsewhere() -> None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)
        task = loop.create_task(use())
        while not used:
            loop.call_later(0.001, loop.stop)
            loop.run_forever()
        loop.close()
        del task
        gc.collect()

    used: list[int] = []
    ignored: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, ignored.append
    try:
        async with Engine("cpu") as engine:
            model = await lively(engine, SHAPE)
            standing = engine.statistics().host_used_bytes
            await asyncio.to_thread(elsewhere)
            await until(lambda: engine.statistics().host_used_bytes == standing)
    finally:
        sys.unraisablehook = before
    assert used[0] > standing and len(ignored) == 1


async def test_a_request_that_leaves_disturbs_no_other(alone: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are broken off, cancelled, timed out or closed, before the first token or later, also from loops that end."""
    pages = pages_made(monkeypatch)
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        before = held_by(model)
        async with model.serve(most=3) as server:

            async def timed_out(index: int) -> None:
                try:
                    async with asyncio.timeout(index / 2000):
                        await text(server.generate([index], max_new_tokens=30))
                except TimeoutError:
                    pass

            def elsewhere(index: int) -> None:
                loop = asyncio.new_event_loop()
                tokens = server.generate([index], max_new_tokens=30)
                for _ in range(index % 4):
                    loop.run_until_complete(anext(tokens))
                loop.close()  # in the middle of a text

            def long(index: int, most: int | None = None) -> Any:
                return text(server.generate([index], max_new_tokens=30), most)

            for turn in range(3):
                others = [asyncio.create_task(timed_out(index)) for index in range(8)]
                others += [asyncio.create_task(long(index, 1 + index)) for index in range(4)]
                others += [asyncio.create_task(asyncio.to_thread(elsewhere, index)) for index in range(4)]
                cancelled = [asyncio.create_task(long(9)) for _ in range(4)]
                for index, task in enumerate(cancelled):
                    for _ in range(5 * index + turn):
                        await asyncio.sleep(0)
                    task.cancel()
                assert await texts(server, max_new_tokens=9) == alone
                await asyncio.gather(*others)
                await asyncio.gather(*cancelled, return_exceptions=True)
            gc.collect()
            await until(lambda: not asked_of(model))
            await settle(engine)
            assert not pages[-1].taken
        assert held_by(model) == before


async def test_a_slow_reader_delays_no_other_request(alone: list[list[int]]) -> None:
    async with Engine("cpu") as engine, (await lively(engine, SHAPE)).serve(most=2) as server:
        slow = server.generate(PROMPTS[0], max_new_tokens=9, seed=0)
        first = await anext(slow)
        assert await one_by_one(server, max_new_tokens=9) == alone
        assert [first.id, *await text(slow)] == alone[0]


async def test_a_step_between_two_tokens_rebuilds_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token follows from the weights of one step applied to all tokens before it."""
    seen: list[tuple[int, list[int], bytes]] = []
    versions: dict[Request, set[int]] = {}

    def watch(request: Request, logits: Any) -> Token:
        assert request.version is not None
        versions.setdefault(request, set()).add(request.version)
        seen.append((request.version, list(request.tokens), logits.tobytes()))
        return choose(request, logits)

    choose = Request.choose
    monkeypatch.setattr(Request, "choose", watch)
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        trainer, states = Trainer(model, OPTIMIZER), [await model.state_dict()]

        async def steps() -> None:
            for number in range(4):
                await trainer.step(*SHAPE.batch_of_tokens(number))
                states.append(await model.state_dict())

        async with model.serve() as server:
            training = asyncio.create_task(steps())
            while not training.done():
                await asyncio.gather(texts(server, max_new_tokens=9), text_of_model(model, max_new_tokens=37))
            await training
        assert any(len(found) > 1 for found in versions.values()), "no step was in the midst of a text"
        for version, tokens, logits in sorted(seen)[::7]:
            if model.step_count != version:
                state, model_state_of(model).step_count = states[version], version
                await model_state_of(model).set_weights(lambda item, key, state=state: state[item.name][item.index(*key)])
            whole = (await model.logits([tokens]))[0, -1]
            np.testing.assert_allclose(np.frombuffer(logits, np.float32), whole, rtol=0, atol=1e-5)


async def test_wrong_arguments_are_refused_in_one_sentence_at_once_and_disturb_nothing(alone: list[list[int]]) -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        async with model.serve() as server:
            good = asyncio.create_task(texts(server, max_new_tokens=9))
            for prompt, options, kind, sentence in WRONG:
                with pytest.raises(kind, match=sentence) as caught:
                    server.generate(prompt, **options)  # no token is requested: a service has not begun to answer
                assert "\n" not in str(caught.value)
            assert await good == alone
        for arguments, kind, sentence in (
            ({"most": 0}, ValueError, "most is 0.*at least 1"), ({"most": True}, ValueError, "most is True"),
            ({"cache": "much"}, ValueError, "much"), ({"cache": 100}, BudgetError, "cache is 100 .*, less than one .*raise"),
        ):  # fmt: skip
            with pytest.raises(kind, match=sentence):
                model.serve(**arguments)  # type: ignore[arg-type]


WRONG: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ([], {}, ValueError, "prompt is empty"),
    ([1] * 40, {}, ValueError, "prompt has 40 tokens, expected at most 39.*block_size"),
    ([35], {}, ValueError, "prompt contains 35.*0 to 34"),
    ([-1], {}, ValueError, "prompt contains -1"),
    ([0.5], {}, TypeError, "prompt has dtype float64"),
    (b"text", {}, TypeError, "prompt"),
    ([[1, 2]], {}, ValueError, r"prompt has shape \(1, 2\), expected \(T,\)"),
    ([[1, 2], [3]], {}, ValueError, "prompt has rows of different lengths"),
    ([1], {"max_new_tokens": 0}, ValueError, "max_new_tokens is 0.*at least 1"),
    ([1], {"max_new_tokens": 1.5}, ValueError, "max_new_tokens is 1.5"),
    ([1], {"temperature": -1}, ValueError, "temperature is -1"),
    ([1], {"top_p": 2}, ValueError, "top_p is 2"),
    ([1], {"seed": "a"}, TypeError, "seed is 'a'"),
]
