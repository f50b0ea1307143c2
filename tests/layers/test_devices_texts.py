"""Texts on an engine of several devices: one text however many devices share a batch, wherever its cache lies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import BudgetError, DeviceError, Engine
from asynctile.layers import Trainer
from asynctile.layers.caches import Caches
from asynctile.layers.decode import Span, inputs_of, record_decode
from asynctile.layers.model import model_state_of
from asynctile.layers.pages import Pages
from asynctile.layers.requests import Request, Token
from asynctile.measure.simulate import simulate
from asynctile.share import runtime_of
from asynctile.storage.demand import Demand
from tests.laws import covering, law
from tests.layers.disturbances import Once, broken
from tests.layers.serving import PROMPTS, SHAPE, one_by_one, page_nbytes_of, pages_made, text, texts, watched
from tests.layers.test_devices import RUNS, emulated
from tests.layers.test_devices_disturbed import last_of
from tests.layers.test_serving import pages_with_bytes
from tests.layers.training import OPTIMIZER, batches_of, lively
from tests.settle import HANG_S

STATES = SHAPE.config.states_nbytes
WORDS = 9
Logits = dict[tuple[int, ...], set[bytes]]
#: The texts of one device and the logits behind them, once they are known.
_alone: list[tuple[list[list[int]], Logits]] = []


@pytest.fixture
async def alone(monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[int]], Logits]:
    """Return the texts of one device, and the logits behind them; those of later texts are added."""
    seen = watched(monkeypatch)
    if not _alone:
        async with Engine("cpu") as engine, (await lively(engine, SHAPE)).serve() as server:
            _alone.append((await one_by_one(server, max_new_tokens=WORDS), dict(seen)))
    written, logits = _alone[0]
    seen.update({tokens: set(bits) for tokens, bits in logits.items()})
    return written, seen


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return a set that gets the devices of all texts."""
    found, choose = set[int](), Request.choose

    def noted(request: Request, logits: Any) -> Token:
        found.add(request.device)
        return choose(request, logits)

    monkeypatch.setattr(Request, "choose", noted)
    return found


@pytest.mark.parametrize(("devices", "share", "prepare"), covering([2, 3, 4, 1], [0.5, None, 1.0], RUNS, few=2))
async def test_no_number_of_devices_changes_a_text_or_the_logits_behind_it(
    devices: int, share: float | None, prepare: Any, alone: Any, used: set[int]
) -> None:
    async with Engine(emulated(devices), device_memory=share and int(share * STATES)) as engine:
        prepare(engine)
        async with (await lively(engine, SHAPE)).serve() as server:
            assert await texts(server, max_new_tokens=WORDS) == alone[0]
            assert used == {*range(devices)}
            assert await one_by_one(server, max_new_tokens=WORDS) == alone[0]
        assert pages_with_bytes(engine) == set()
    assert all(len(logits) == 1 for logits in alone[1].values())


async def test_texts_of_a_model_are_shared_by_all_devices_and_have_the_tokens_of_one(used: set[int]) -> None:
    async def written(device: str) -> list[list[int]]:
        async with Engine(device) as engine:
            model = await lively(engine, SHAPE)

            async def ids(number: int) -> list[int]:
                return [token async for token in model.generate(PROMPTS[number], max_new_tokens=45, seed=number)]

            return await asyncio.gather(*map(ids, range(len(PROMPTS))))

    one = await written("cpu")
    assert used == {0}
    assert await written("emulated*3") == one
    assert used == {0, 1, 2}


@pytest.mark.parametrize(("devices", "prepare"), covering([2, 3], RUNS))
async def test_no_spill_folder_below_several_devices_changes_a_text(
    devices: int, prepare: Any, tmp_path: Path, alone: Any
) -> None:
    caps: dict[str, Any] = {"device_memory": STATES // 2, "host_memory": STATES // 2, "spill": tmp_path}
    async with Engine(emulated(devices), **caps) as engine:
        prepare(engine)
        async with (await lively(engine, SHAPE)).serve() as server:
            assert await texts(server, max_new_tokens=WORDS) == alone[0]
    assert list(tmp_path.iterdir()) == []


async def test_a_small_cache_is_one_limit_for_all_devices_and_changes_no_text(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, reserve, most = pages_made(monkeypatch), Pages.reserve, []

    def reserved(pages: Pages, count: int) -> tuple[int, ...]:
        found = reserve(pages, count)
        most.append(sum(one.visited for one in made[-3:]))
        return found

    monkeypatch.setattr(Pages, "reserve", reserved)
    async with Engine("emulated*3") as engine:
        model = await lively(engine, SHAPE)
        async with asyncio.timeout(HANG_S), model.serve(cache=7 * page_nbytes_of(model)) as server:
            assert await texts(server, max_new_tokens=WORDS) == alone[0]
    assert len(most) == len(PROMPTS) and max(most) == 7


async def test_a_text_gets_the_memory_of_a_device_without_texts_where_caps_leave_no_other(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Caches] = []

    def noted(*args: Any) -> Caches:
        made.append(Caches(*args))
        return made[-1]

    monkeypatch.setattr("asynctile.layers.serving.Caches", noted)
    async with Engine("emulated*2") as engine, (await lively(engine, SHAPE)).serve() as server:
        await texts(server, PROMPTS[:2], max_new_tokens=WORDS)
        assert [cache.filled for cache in made[-1]] == [2, 2]
        cut = runtime_of(engine).cut

        async def crowded(demand: Demand) -> None:
            if made[-1][1].filled:
                raise BudgetError("the caps are full", floor=1)
            await cut(demand)

        monkeypatch.setattr(runtime_of(engine), "cut", crowded)
        assert await text(server.generate(PROMPTS[2], max_new_tokens=WORDS, seed=2)) == alone[0][2]
        assert [cache.filled for cache in made[-1]] == [8, 0]


@pytest.mark.parametrize("prepare", [RUNS["played"], law(RUNS["by coroutines"])], ids=RUNS)
async def test_texts_among_steps_on_several_devices_are_those_of_one(prepare: Any) -> None:
    async def told(device: str) -> list[Any]:
        found: list[Any] = []
        async with Engine(device, device_memory=None if device == "cpu" else STATES) as engine:
            prepare(engine)
            trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=2)
            async with trainer.model.serve() as server:
                for batch in batches_of(SHAPE, 3):
                    begun = server.generate([1, 2], max_new_tokens=30, seed=1)
                    found += [(await anext(begun)).id, (await trainer.step(*batch)).loss]
                    found.append(await texts(server, max_new_tokens=3))
                    assert len(await text(begun)) == 29, "nothing says which tokens come before the step"
        return found

    assert await told("emulated*2") == await told("cpu")


async def test_texts_beside_a_training_on_several_devices_follow_from_the_weights_of_one_step() -> None:
    async def told(device: str, **caps: Any) -> list[Any]:
        found: list[Any] = []
        async with Engine(device) as engine, engine.share(**caps, interactive=True) as part:
            trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=2)
            async with trainer.model.serve(part) as server:
                for batch in batches_of(SHAPE, 3):
                    report, written = await asyncio.gather(trainer.step(*batch), texts(server, max_new_tokens=3))
                    found.append(report.loss)
                    assert len(written) == len(PROMPTS)
                    assert await server.publish()
                    found.append(await texts(server, max_new_tokens=WORDS))
        return found

    room = 8 << 20
    assert await told("emulated*2", device_memory=room, host_memory=room) == await told("cpu", host_memory=room)


async def test_a_device_that_fails_ends_the_texts_of_its_run_and_later_ones_are_as_before(alone: Any) -> None:
    async with Engine("emulated*3") as engine:
        runtime_of(engine).plays = False
        model = await lively(engine, SHAPE)
        async with model.serve() as server:
            disguise = Once(engine, "attention_page", 3, broken, last_of(engine))
            wishes = (text(server.generate(prompt, max_new_tokens=WORDS)) for prompt in PROMPTS)
            found = await asyncio.gather(*wishes, return_exceptions=True)
            assert {type(error) for error in found} == {DeviceError}
            disguise.restore()
            assert await texts(server, max_new_tokens=WORDS) == alone[0] and model.torn is None


@pytest.mark.parametrize("devices", [law(2), 3])
async def test_texts_that_are_broken_off_disturb_none_on_another_device_and_leave_no_page(
    devices: int, alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pages_made(monkeypatch)
    async with Engine(emulated(devices), device_memory=STATES) as engine:
        async with (await lively(engine, SHAPE)).serve() as server:
            for turns in (1, 3, 9, 27):
                whole = asyncio.create_task(texts(server, max_new_tokens=WORDS))
                broken_off = asyncio.create_task(texts(server, [[5], [6], [8]], max_new_tokens=30))
                short = [text(server.generate([index], max_new_tokens=30), turns % 5) for index in range(3)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                broken_off.cancel()
                await asyncio.gather(*short)
                assert await whole == alone[0]
                with pytest.raises(asyncio.CancelledError):
                    await broken_off
            assert await texts(server, max_new_tokens=WORDS) == alone[0]
        assert not any(pages.taken for pages in made)


@pytest.mark.parametrize(("devices", "share"), [(2, 0.3), (3, None), law(4, 0.3), law(1, 0.3), law(2, 1.0)])
async def test_every_run_of_texts_after_the_first_moves_the_planned_bytes(devices: int, share: float | None) -> None:
    async with Engine(emulated(devices), device_memory=share and int(share * STATES)) as engine:
        state, runtime = model_state_of(await lively(engine, SHAPE)), runtime_of(engine)
        pages = (2,) * devices
        caches = Caches(state.parameters, devices, sum(pages))
        program = record_decode(state.parameters, caches, rows=4, pages=pages, wanted=4)
        tiles = list(caches.tiles(pages))
        demand = state.demand(program, tiles)
        await runtime.store(((tile, np.zeros(tile.shape, tile.dtype)) for tile in tiles), demand)
        logits = np.empty((4 * devices, SHAPE.config.vocab_size), np.float32)

        async def run(position: int) -> None:
            spans = [[Span(np.array([7], np.int32), position, (0, 1))] for _ in range(devices)]
            inputs = inputs_of(spans, caches.positions, 4, pages)
            async with runtime.exclusive():
                await (await runtime.start(program, demand, inputs, {"logits": logits})).finish()

        moved = []
        for position in range(5):
            before = engine.statistics()
            await runtime.call(run(position))
            now = engine.statistics()
            moved.append((now.uploaded_bytes - before.uploaded_bytes, now.downloaded_bytes - before.downloaded_bytes))
        standing, cap = [*state.standing(), *tiles], runtime.device_cap
        plan = simulate(program, standing, device_memory=cap, rates=runtime.tiers.rates)
        assert program.devices == devices and plan.divided is (share == 0.3)
        assert moved[1:] == [(plan.uploaded_nbytes, plan.downloaded_nbytes + plan.fetched_nbytes)] * 4
        assert all(logits[4 * device].tobytes() == logits[0].tobytes() for device in range(devices))
