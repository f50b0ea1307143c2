"""Errors while texts are written reach only the texts concerned, as typed sentences; waiting texts come in order."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import numpy as np
import pytest

from asynctile import BudgetError, DeviceError, Engine, TornModelError
from asynctile.layers import GPT2, GPT2Config
from asynctile.layers.caches import Caches
from asynctile.layers.decode import record_decode
from asynctile.layers.model import model_state_of
from asynctile.layers.pages import Pages
from asynctile.layers.requests import Request
from asynctile.layers.server import Server
from asynctile.layers.tokenizer import ByteTokenizer
from asynctile.share import runtime_of
from tests.layers.serving import PROMPTS, SHAPE, asked_of, hold, one_by_one, page_nbytes_of, text, texts
from tests.layers.training import lively
from tests.settle import until

BYTES = GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=64, vocab_size=256)


async def outcomes(server: Server, **options: Any) -> list[Any]:
    wishes = [text(server.generate(prompt, seed=1, max_new_tokens=9, **options)) for prompt in PROMPTS]
    return await asyncio.gather(*wishes, return_exceptions=True)


async def test_a_failed_operation_ends_the_texts_in_it_and_the_next_ones_go_on() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        async with model.serve() as server:
            expected = await texts(server, max_new_tokens=9)
            attend = runtime_of(engine).device.kernels["attention_page"]

            def fails(*operands: Any) -> None:
                raise RuntimeError("no such luck")

            runtime_of(engine).device.kernels["attention_page"] = fails
            found = await outcomes(server)
            assert [type(error) for error in found] == [DeviceError] * len(PROMPTS)
            assert all("no such luck" in str(error) for error in found)
            assert len({id(error) for error in found}) == len(found)
            runtime_of(engine).device.kernels["attention_page"] = attend
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


async def test_a_torn_model_ends_its_texts_and_accepts_no_more() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        async with model.serve() as server:
            running = server.generate([1], max_new_tokens=38)
            await anext(running)
            model_state_of(model).torn = "step 3 failed"
            with pytest.raises(TornModelError, match="cannot generate: step 3 failed"):
                await text(running)
            with pytest.raises(TornModelError, match="step 3 failed"):
                await text(server.generate([1]))
        with pytest.raises(TornModelError, match="cannot serve: step 3 failed"):
            await model.serve().__aenter__()


async def test_a_text_that_can_never_fit_is_refused_at_once_and_others_wait_for_pages_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        async with model.serve() as server:
            expected = await texts(server, max_new_tokens=9)
        page = page_nbytes_of(model)
        async with model.serve(cache=7 * page) as server:
            with pytest.raises(BudgetError, match=r"39 positions takes 7 pages .* has 6 pages; raise cache") as caught:
                async with model.serve(cache=7 * page - 1) as less:
                    less.generate([1], max_new_tokens=39)
            assert caught.value.floor == 7 * page
            admitted: list[int] = []
            reserve = Pages.reserve

            def reserved(pages: Pages, count: int) -> tuple[int, ...]:
                admitted.append(count)
                return reserve(pages, count)

            monkeypatch.setattr(Pages, "reserve", reserved)
            held = asyncio.create_task(runtime_of(engine).call(hold(engine)))
            tasks = []
            for index, prompt in enumerate(PROMPTS):
                tasks.append(asyncio.create_task(text(server.generate(prompt, seed=index, max_new_tokens=9))))
                await until(lambda index=index: asked_of(model) == index + 1)
            held.cancel()
            assert await asyncio.gather(*tasks) == expected
            assert admitted == [2, 2, 7, 3, 2]


async def cap_for(pages: int) -> int:
    """Return the RAM that holds the model and this many pages, but not twice as many."""
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPE)
        caches = Caches(model_state_of(model).parameters, 1, pages)
        program = record_decode(model_state_of(model).parameters, caches, rows=12, pages=(pages,), wanted=12)
        return model_state_of(model).demand(program, caches.tiles((pages,))).resident_nbytes


def pages_with_bytes(engine: Engine) -> set[int]:
    """Return the numbers of the cache's pages that have bytes."""
    resident = [residency for tier in runtime_of(engine).tiers.from_the_top() for residency in tier.ledger.resident]
    return {int(found[1]) for residency in resident if (found := re.search(r"\.kv\[\d+\]\.page (\d+)$", residency.tile.name))}


async def test_where_caps_leave_few_pages_the_next_text_waits_for_them() -> None:
    async with Engine("cpu") as engine, (await lively(engine, SHAPE)).serve() as server:
        expected = await texts(server, max_new_tokens=9)
    async with Engine("cpu", host_memory=await cap_for(8)) as engine, (await lively(engine, SHAPE)).serve() as server:
        assert await texts(server, max_new_tokens=9) == expected
        assert pages_with_bytes(engine) == {*range(8)}
    async with Engine("cpu", host_memory=await cap_for(2)) as engine, (await lively(engine, SHAPE)).serve() as server:
        with pytest.raises(BudgetError, match="host_memory"):
            await text(server.generate(PROMPTS[2], max_new_tokens=9))
        assert await text(server.generate(PROMPTS[0], max_new_tokens=9, seed=0)) == expected[0]


class Begun(ByteTokenizer):
    """A tokenizer that puts token 7 before a prompt."""

    def encode_prompt(self, prompt: str) -> Any:
        return np.append([7], self.encode(prompt))


async def test_text_goes_in_comes_out_and_ends_where_it_should() -> None:
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
        async with model.serve(tokenizer=Begun()) as server:
            begun = await text(server.generate("Once", max_new_tokens=9, seed=3))
            assert begun == await text(server.generate([7, *b"Once"], max_new_tokens=9, seed=3)) != ids[:9]
        async with model.serve() as server:
            with pytest.raises(TypeError, match=r"prompt is a string.*tokenizer"):
                await text(server.generate("Once"))
            with pytest.raises(ValueError, match=r"stop has strings.*tokenizer"):
                await text(server.generate([1], stop="x"))
            assert [token.text async for token in server.generate([1], max_new_tokens=2)] == ["", ""]
            with pytest.raises(ValueError, match="stop id is -1"):
                await text(server.generate([1], stop_ids=-1))
        with pytest.raises(ValueError, match="the tokenizer has 256 tokens, but the model that is to be served has only 35"):
            (await GPT2.create(engine, SHAPE.config)).serve(tokenizer=tokenizer)
