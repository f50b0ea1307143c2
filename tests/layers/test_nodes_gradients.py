"""Gradients on several nodes: those of the whole batch on each of them, or an error on all."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from asynctile import Engine
from asynctile.errors import AsynctileError, TornModelError
from asynctile.layers import Trainer
from asynctile.layers.model import model_state_of
from tests.laws import law
from tests.layers.disturbances import Broken, Once, broken
from tests.layers.test_nodes import Found, exchange_of, on_nodes, trained
from tests.layers.test_replicas_trained import BATCHES, REPLICAS, SHAPE, STATES, yardstick
from tests.layers.training import OPTIMIZER, assert_same_tensors, lively
from tests.settle import HANG_S


@pytest.mark.parametrize(("nodes", "device", "share"), [
    (2, "emulated", 0.3), law(2, "emulated*2", None), law(3, "cpu", None), law(4, "emulated", None), law(1, "cpu", None),
])  # fmt: skip
async def test_every_node_gets_all_gradients_with_the_bits_of_one(nodes: int, device: str, share: float | None) -> None:
    async def work(engine: Engine, trainer: Trainer) -> tuple[Any, Found]:
        return await trainer.gradients(*BATCHES[0]), await trained(engine, trainer)

    async with Engine("cpu") as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=REPLICAS)
        alone = await trainer.gradients(*BATCHES[0])
    expected, caps = await yardstick(), {} if share is None else {"device_memory": int(share * STATES)}
    for gradients, found in await on_nodes(nodes, work, device, caps):
        assert_same_tensors(gradients, alone)
        assert found.losses == expected.losses
        assert_same_tensors(found.weights, expected.weights)


async def test_gradients_of_other_batches_are_refused_and_those_of_one_batch_follow() -> None:
    async def work(engine: Engine, trainer: Trainer) -> float:
        with pytest.raises(AsynctileError, match="other batches or learning rates for gradients after step 0; give all nodes"):
            await trainer.gradients(*BATCHES[exchange_of(engine).node])
        return float(sum(gradient.sum() for gradient in (await trainer.gradients(*BATCHES[0])).values()))

    zero, one = await on_nodes(2, work)
    assert zero == one != 0


@pytest.mark.parametrize(("kind", "words"), [(TornModelError, "the test wants it"), law(Broken, "the kernel broke")])
async def test_gradients_that_fail_on_one_node_fail_on_all(kind: type[Exception], words: str) -> None:
    async def work(engine: Engine, trainer: Trainer) -> str:
        own = exchange_of(engine).node == 1
        if own and kind is Broken:
            Once(engine, "gelu", 1, broken)
        elif own:
            model_state_of(trainer.model).tear(words)
        with pytest.raises(kind if own else AsynctileError, match=words):
            await trainer.gradients(*BATCHES[0])
        return "ended"

    assert await on_nodes(2, work) == ["ended"] * 2


async def test_gradients_without_room_for_results_on_one_node_fail_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(engine: Engine, trainer: Trainer) -> str:
        exchange, parameters = exchange_of(engine), model_state_of(trainer.model).parameters
        own, share = exchange.node == 1, exchange.share

        def none_left() -> list[Any]:
            raise MemoryError("none is left")

        def shared(topic: str, body: bytes) -> list[bytes]:
            said = share(topic, body)
            if own and topic.startswith("begin of gradients"):
                monkeypatch.setattr(parameters, "trained", none_left)
            return said

        monkeypatch.setattr(exchange, "share", shared)
        with pytest.raises(MemoryError if own else AsynctileError, match="none is left"):
            await trainer.gradients(*BATCHES[0])
        return "ended"

    assert await on_nodes(2, work) == ["ended"] * 2


async def test_gradients_are_returned_only_once_every_node_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    has_run = threading.Event()

    async def work(engine: Engine, trainer: Trainer) -> str:
        state, own = model_state_of(trainer.model), exchange_of(engine).node == 1
        run = state.run

        async def ran(*args: Any) -> Any:
            found = await run(*args)
            if own:
                assert await asyncio.to_thread(has_run.wait, HANG_S)
                raise Broken("too late")
            has_run.set()
            return found

        monkeypatch.setattr(state, "run", ran)
        with pytest.raises(Broken if own else AsynctileError, match="too late"):
            await trainer.gradients(*BATCHES[0])
        return "ended"

    assert await on_nodes(2, work) == ["ended"] * 2
