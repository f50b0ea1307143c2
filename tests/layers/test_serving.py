"""What goes wrong while texts are written concerns those whom it concerns, in typed sentences; what waits comes in order."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from asynctile import BudgetError, DeviceError, Engine, TornModelError
from asynctile.layers import GPT2, GPT2Config, serving
from asynctile.layers.decode import record_decode
from asynctile.layers.requests import Request
from asynctile.layers.server import Server
from asynctile.layers.tokenizer import ByteTokenizer
from asynctile.share import Share
from tests.layers.serving import PROMPTS, SHAPE, one_by_one, text, texts
from tests.layers.training import lively
from tests.settle import until

BYTES = GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=64, vocab_size=256)


async def outcomes(server: Server, **options: Any) -> list[Any]:
    wishes = [text(server.generate(prompt, seed=1, max_new_tokens=9, **options)) for prompt in PROMPTS]
    return await asyncio.gather(*wishes, return_exceptions=True)


async def test_an_operation_that_fails_ends_those_who_were_in_it_and_the_next_ones_go_on() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        async with model.serve() as server:
            expected = await texts(server, max_new_tokens=9)
            attend = engine.kernels["attention_page"]

            def fails(*operands: Any) -> None:
                raise RuntimeError("no such luck")

            engine.kernels["attention_page"] = fails
            found = await outcomes(server)
            assert [type(error) for error in found] == [DeviceError] * len(PROMPTS)
            assert all("no such luck" in str(error) for error in found)
            assert len({id(error) for error in found}) == len(found)
            engine.kernels["attention_page"] = attend
            assert await texts(server, max_new_tokens=9) == expected
            assert model.torn is None


async def test_a_text_whose_choice_fails_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = Request.choose

    def fails(request: Request, logits: Any) -> Any:
        if request.tokens[0] == 4 and len(request.tokens) > 3:
            raise OverflowError("too much")
        return choose(request, logits)

    async with Engine("cpu") as engine, (await lively(engine, SHAPE)).serve() as server:
        expected = await one_by_one(server, max_new_tokens=9)
        monkeypatch.setattr(Request, "choose", fails)
        wishes = enumerate(PROMPTS)
        running = [text(server.generate(prompt, seed=seed, max_new_tokens=9)) for seed, prompt in wishes]
        found = await asyncio.gather(*running, return_exceptions=True)
        assert isinstance(found[1], DeviceError) and "too much" in str(found[1])
        assert [found[0], *found[2:]] == [expected[0], *expected[2:]]


async def test_a_torn_model_ends_its_texts_and_takes_no_more() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        async with model.serve() as server:
            running = server.generate([1], max_new_tokens=38)
            await anext(running)
            model.torn = "step 3 failed"
            with pytest.raises(TornModelError, match="cannot generate: step 3 failed"):
                await text(running)
            with pytest.raises(TornModelError, match="step 3 failed"):
                await text(server.generate([1]))
        with pytest.raises(TornModelError, match="cannot serve: step 3 failed"):
            await model.serve().__aenter__()


async def test_closing_a_server_or_an_engine_ends_who_reads() -> None:
    """At once, also while their next run waits for somebody else's program."""
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        async with model.serve(most=2) as server:
            await text(server.generate([1], max_new_tokens=39))  # the pages of the next are there
            held = asyncio.create_task(engine.call(hold(engine)))
            reading = asyncio.gather(*(text(server.generate([1])) for _ in range(5)), return_exceptions=True)
            await until(lambda: len(server._serving._waiting) + len(server._serving._running) == 5)
            closing = asyncio.create_task(server.aclose())
            assert [type(error) for error in await reading] == [DeviceError] * 5
            assert all("server was closed" in str(error) for error in await reading)
            assert not closing.done()
            with pytest.raises(DeviceError, match="server is not open"):
                await text(server.generate([1]))
            held.cancel()
            await closing
        others = asyncio.create_task(consume(model))
        await until(lambda: model._serving._running)
    with pytest.raises(DeviceError, match="closed"):
        await others


@pytest.mark.parametrize("way", ["closed", "cancelled", "loop closed", "loop closed at once"])
async def test_a_request_that_nobody_reads_leaves_at_its_next_token(way: str) -> None:
    async with Engine("cpu") as engine, (await lively(engine, SHAPE)).serve() as server:
        held = asyncio.create_task(engine.call(hold(engine)))
        await until(lambda: engine.busy.holder is not None)
        tokens: Any = server.generate([1], max_new_tokens=39)
        if way.startswith("loop closed"):
            await asyncio.to_thread(begun_elsewhere, tokens, server, waits=way == "loop closed")
        else:
            first = asyncio.create_task(anext(tokens))
            await until(lambda: server._serving._waiting)
        request = server._serving._waiting[0]
        if way == "closed":
            other = asyncio.create_task(text(server.generate([2], max_new_tokens=39)))
            held.cancel()
            await first
            held = asyncio.create_task(engine.call(hold(engine)))
            await until(lambda: engine.busy.holder is not None and "hold" in engine.busy.holder)
            await tokens.aclose()
            assert len(await finished(other, held)) == 39
        elif way == "cancelled":
            first.cancel()
            await asyncio.wait([first])
        written = len(request.tokens)
        held.cancel()
        await until(server._serving._task.done)
        assert written <= len(request.tokens) <= written + 1 < 39
        assert not server._serving._pages.taken
        del tokens  # the collector does not have it before


async def test_a_request_that_is_thrown_away_between_two_tokens_leaves() -> None:
    """By the collector: its loop, which would have closed it, is closed."""

    def begun() -> tuple[Any, Request]:
        loop = asyncio.new_event_loop()
        tokens = server.generate([1], max_new_tokens=39)
        loop.run_until_complete(anext(tokens))
        loop.close()
        return tokens, server._serving._running[0]

    async with Engine("cpu") as engine, (await lively(engine, SHAPE)).serve() as server:
        choose, go_on = Request.choose, threading.Event()

        def slowly(request: Request, logits: Any) -> Any:
            if len(request.tokens) == 3:
                go_on.wait(20)
            return choose(request, logits)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(serving, "AT_ONCE", 0)
            patch.setattr(Request, "choose", slowly)
            tokens, request = await asyncio.to_thread(begun)
            del tokens
            gc.collect()
            go_on.set()
            await until(server._serving._task.done)
        assert len(request.tokens) <= 4 and not server._serving._pages.taken


async def finished(task: asyncio.Task[Any], held: asyncio.Task[Any]) -> Any:
    held.cancel()
    return await task


def begun_elsewhere(tokens: Any, server: Server, *, waits: bool) -> None:
    """Asked for in a loop that is closed before there is a token. waits: for one; else it does not know yet that it may."""
    loop = asyncio.new_event_loop()
    first = loop.create_task(anext(tokens))
    loop.run_until_complete(asyncio.sleep(0))
    while not (server._serving._waiting and (not waits or server._serving._waiting[0].box._waiting)):
        if waits:
            loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    first._log_destroy_pending = False  # type: ignore[attr-defined]


async def test_a_share_that_ends_waits_for_the_texts_on_it() -> None:
    async with Engine("cpu") as engine:
        async with (await lively(engine, SHAPE)).serve() as server:
            expected = await one_by_one(server, max_new_tokens=9)
        async with engine.share(host_memory="8MiB") as part:
            model = await lively(part, SHAPE)  # type: ignore[arg-type]

            async def ids() -> list[int]:
                return [token async for token in model.generate(PROMPTS[0], seed=0, max_new_tokens=9)]

            held = asyncio.create_task(part.call(hold(part)))
            writing = asyncio.create_task(ids())
            await until(lambda: model._serving._waiting)
            asyncio.get_running_loop().call_later(0.05, held.cancel)
        assert await writing == expected[0]


async def consume(model: GPT2) -> None:
    while True:
        async for _ in model.generate([1], max_new_tokens=39):
            pass


async def hold(engine: Share) -> None:
    """Its program runs, for all that others know."""
    async with engine.exclusive():
        await asyncio.Event().wait()


async def test_a_text_that_could_never_fit_is_refused_at_once_and_others_wait_for_pages_in_order() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        async with model.serve() as server:
            expected = await texts(server, max_new_tokens=9)
            page = server._serving.cache.page_nbytes
        async with model.serve(cache=7 * page) as server:
            with pytest.raises(BudgetError, match=r"39 positions takes 7 pages .* and it is 6 pages; raise cache") as caught:
                async with model.serve(cache=7 * page - 1) as less:
                    await text(less.generate([1], max_new_tokens=39))
            assert caught.value.floor == 7 * page
            admitted: list[int] = []
            reserve = server._serving._pages.reserve

            def reserved(count: int) -> tuple[int, ...]:
                admitted.append(count)
                return reserve(count)

            server._serving._pages.reserve = reserved  # type: ignore[method-assign]
            held = asyncio.create_task(engine.call(hold(engine)))
            tasks = []
            for index, prompt in enumerate(PROMPTS):
                tasks.append(asyncio.create_task(text(server.generate(prompt, seed=index, max_new_tokens=9))))
                await until(lambda index=index: len(server._serving._waiting) + len(admitted) == index + 1)
            held.cancel()
            assert await asyncio.gather(*tasks) == expected
            assert admitted == [2, 2, 7, 3, 2]


async def cap_for(pages: int) -> int:
    """RAM in which the model and so many pages have room, and not twice as many."""
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        cache = model._serving.cache
        program = record_decode(model.parameters, cache, rows=12, pages=pages, wanted=12)
        return model.demand(program, cache.tiles(0, pages)).resident_nbytes


async def test_where_caps_leave_room_for_few_pages_the_next_text_waits_for_those() -> None:
    async with Engine("cpu") as engine, (await lively(engine, SHAPE)).serve() as server:
        expected = await texts(server, max_new_tokens=9)
    async with Engine("cpu", host_memory=await cap_for(8)) as engine, (await lively(engine, SHAPE)).serve() as server:
        assert await texts(server, max_new_tokens=9) == expected
        assert server._serving._filled == 8
    async with Engine("cpu", host_memory=await cap_for(2)) as engine, (await lively(engine, SHAPE)).serve() as server:
        with pytest.raises(BudgetError, match="host_memory"):
            await text(server.generate(PROMPTS[2], max_new_tokens=9))
        assert await text(server.generate(PROMPTS[0], max_new_tokens=9, seed=0)) == expected[0]


async def test_text_goes_in_and_comes_out_and_ends_where_it_is_to_stop() -> None:
    tokenizer = ByteTokenizer()
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, BYTES, seed=1)
        async with model.serve(tokenizer=tokenizer) as server:
            free = [token async for token in server.generate("Once", max_new_tokens=40, top_k=None, temperature=2.0, seed=3)]
            ids = [token.id for token in free]
            whole = tokenizer.decode(ids)
            assert "".join(token.text for token in free) == whole
            assert ids == await text(server.generate(list(b"Once"), max_new_tokens=40, top_k=None, temperature=2.0, seed=3))

            options: dict[str, Any] = {"max_new_tokens": 40, "top_k": None, "temperature": 2.0, "seed": 3}
            plain = next(id for id in ids[5:] if 32 < id < 127)
            end = ids.index(plain)
            found = [token async for token in server.generate("Once", stop_ids=plain, **options)]
            assert [token.id for token in found] == ids[: end + 1] and found[-1].finish_reason == "stop"
            assert "".join(token.text for token in found) == tokenizer.decode(ids[:end])
            found = [token async for token in server.generate("Once", stop=["never there", chr(plain)], **options)]
            assert [token.id for token in found] == ids[: end + 1] and found[-1].finish_reason == "stop"
            assert "".join(token.text for token in found) == tokenizer.decode(ids[:end])
        async with model.serve() as server:
            with pytest.raises(TypeError, match=r"prompt is a text.*tokenizer"):
                await text(server.generate("Once"))
            with pytest.raises(ValueError, match=r"stop has strings.*tokenizer"):
                await text(server.generate([1], stop="x"))
            assert [token.text async for token in server.generate([1], max_new_tokens=2)] == ["", ""]
            with pytest.raises(ValueError, match="stop id is -1"):
                await text(server.generate([1], stop_ids=-1))
        with pytest.raises(ValueError, match="the tokenizer has 256 tokens and the model that is to be served only 35"):
            (await GPT2.create(engine, SHAPE.config)).serve(tokenizer=tokenizer)
