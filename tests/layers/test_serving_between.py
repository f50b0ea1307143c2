"""Texts on the share of a training: the number of tokens between two of its steps, and how both may end.

test_server.py tests that each token follows from one version of the weights, tests/schedule/test_allowance.py how long texts
may keep the share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asynctile import DeviceError, Engine
from asynctile.events import TextsWait
from asynctile.layers import Trainer
from asynctile.layers.model import model_state_of
from asynctile.layers.requests import Request, Token
from asynctile.layers.server import Server
from asynctile.schedule import allowance
from tests.layers.serving import PROMPTS, SHAPE, text
from tests.layers.training import OPTIMIZER, batches_of, lively
from tests.settle import until

BATCHES = batches_of(SHAPE, 12)
#: The part of a step's time that texts may take: none, and more than any text here needs.
NOTHING, ENOUGH = 0.0, 1e9


@pytest.fixture
def steps_before(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list of the number of steps done when each token was chosen."""
    found, choose = [], Request.choose

    def watch(request: Request, logits: Any) -> Token:
        found.append(request.weights.version)
        return choose(request, logits)

    monkeypatch.setattr(Request, "choose", watch)
    return found


@asynccontextmanager
async def scene() -> AsyncIterator[tuple[Trainer, Server, asyncio.Future[Any]]]:
    """Open a server of a model whose steps, all requested at once, wait one behind the other."""
    async with Engine("cpu") as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER)
        async with trainer.model.serve() as server:
            await text(server.generate(PROMPTS[0], max_new_tokens=9))  # its programs are recorded
            training = asyncio.gather(*(trainer.step(*batch) for batch in BATCHES))
            await until(lambda: trainer.step_count > 0)
            yield trainer, server, training
            await training
            assert trainer.step_count == len(BATCHES) and trainer.model.torn is None


async def test_a_text_waits_for_one_step_and_then_writes_all_tokens_if_it_has_the_time(
    monkeypatch: pytest.MonkeyPatch, steps_before: list[int]
) -> None:
    monkeypatch.setattr(allowance, "PART", ENOUGH)
    async with scene() as (_, server, _):
        steps_before.clear()
        assert len(await text(server.generate(PROMPTS[2], max_new_tokens=9))) == 9
        assert len(set(steps_before)) == 1 and 0 < steps_before[0] < len(BATCHES)


async def test_without_time_for_texts_each_token_waits_for_a_step_and_comes(
    monkeypatch: pytest.MonkeyPatch, steps_before: list[int]
) -> None:
    monkeypatch.setattr(allowance, "PART", NOTHING)
    async with scene() as (_, server, _):
        steps_before.clear()
        assert len(await text(server.generate(PROMPTS[2], max_new_tokens=9))) == 9
        between = [steps for steps in steps_before if steps < len(BATCHES)]
        assert len(between) > 3 and len(set(between)) == len(between)


async def test_many_texts_of_two_servers_leave_a_training_its_steps(
    monkeypatch: pytest.MonkeyPatch, steps_before: list[int]
) -> None:
    monkeypatch.setattr(allowance, "PART", NOTHING)
    async with scene() as (trainer, server, training), trainer.model.serve() as other:
        steps_before.clear()
        texts = [text(each.generate([1], max_new_tokens=39)) for each in (server, other) for _ in PROMPTS]
        writing = asyncio.gather(*texts)
        await training
        assert len(steps_before) <= 2 * len(PROMPTS) * len(BATCHES)
        assert [len(found) for found in await writing] == [39] * len(texts)


async def test_breaking_a_text_off_lets_the_waiting_step_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "PART", ENOUGH)
    async with scene() as (trainer, server, training):
        assert len(await text(server.generate([1], max_new_tokens=39), most=2)) == 2
        await training
        await until(lambda: not model_state_of(trainer.model).readers)


async def test_closing_a_server_ends_its_texts_and_lets_the_waiting_step_go_on(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowance, "PART", ENOUGH)
    async with scene() as (trainer, server, training):
        running = server.generate([1], max_new_tokens=39)
        await anext(running)
        held = trainer.model.engine.statistics().host_used_bytes
        await server.aclose()
        with pytest.raises(DeviceError, match="the server was closed"):
            await text(running)
        await training
        assert trainer.model.engine.statistics().host_used_bytes < held


async def test_the_advice_to_serve_on_a_separate_share_is_given_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(allowance, "PART", NOTHING)
    caplog.set_level(logging.INFO, logger="asynctile.layers")
    async with scene() as (trainer, server, training):
        assert not caplog.records, "a text between trainings waited for none"
        trainer.model.name = "chat"
        reader = trainer.model.engine.events()
        for _ in range(2):
            await text(server.generate(PROMPTS[0], max_new_tokens=3))
        await training
    told = [event async for event in reader if isinstance(event, TextsWait)]
    assert [(event.share, event.model) for event in told] == [("engine", "chat")]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", told[0].text)]
    assert told[0].text.startswith("texts of chat wait for the training steps") and "model.serve(part)" in told[0].text
