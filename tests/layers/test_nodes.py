"""Trainings of four replicas on several nodes: one digest however many carry them, and one fate for all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from asynctile import Engine
from asynctile.errors import AsynctileError, BudgetError, TornModelError
from asynctile.layers import LoRA, StepReport, Trainer
from asynctile.layers.machine import Machine
from asynctile.layers.model import model_state_of
from asynctile.layers.plan import plan_step
from asynctile.layers.rows import Rows
from asynctile.nodes.tcp_exchange import TcpExchange
from asynctile.program.program import Program
from asynctile.schedule.rates import CORES
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile
from tests.laws import covering, law
from tests.layers.disturbances import Once, broken
from tests.layers.test_replicas_trained import BATCHES, REPLICAS, SHAPE, STATES, by_coroutines, yardstick
from tests.layers.training import OPTIMIZER, assert_same_tensors, floor_of, lively
from tests.nodes.meetings import met
from tests.settle import HANG_S

RUNS = {"played": lambda _: None, "by coroutines": by_coroutines}
CLIPS = {"fused": None, "clipped": 0.1}


class Found(NamedTuple):
    """The outcome on one node. moments: the parts of tensors that it holds, each with name and index. sent: bytes of a step."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, NDArray[Any]]
    moments: list[tuple[str, Any, NDArray[Any]]]
    sent: int
    received: int


def exchange_of(engine: Engine) -> TcpExchange:
    link = runtime_of(engine).tiers.nodes
    assert link is not None
    return link.exchange


async def held_moments(trainer: Trainer) -> list[tuple[str, Any, NDArray[Any]]]:
    state = model_state_of(trainer.model)
    here = set(state.standing())
    found = []
    for parameter in state.parameters.trained():
        for family in ("exp_avg", "exp_avg_sq"):
            for key, tile in getattr(parameter, family).items():
                if tile in here:
                    piece = parameter.cut(await state.runtime.read(tile), *key)
                    found.append((f"{parameter.name}.{family}", parameter.index(*key), piece))
    return found


async def on_nodes(
    count: int, work: Callable[[Engine, Trainer], Any], device: str = "cpu", caps: dict[str, Any] | None = None,
    spill: Path | None = None, make: Callable[..., Engine] = Engine, meeting: Callable[[int], Any] = met,
    update: str = "auto", **options: Any,
) -> list[Any]:  # fmt: skip
    """Return the result of `work` on each node; an error counts as a result.

    device, update: of each node, or several words for one node after the other. spill: with a folder for each node. make:
    makes the engine of a node. meeting: gives the exchanges of so many nodes.
    """

    async def one(exchange: TcpExchange) -> Any:
        below = {} if spill is None else {"spill": spill / str(exchange.node)}
        devices, updates = device.split(), update.split()
        own = devices[exchange.node % len(devices)]
        async with make(own, exchange=exchange, **{"host_memory": "64MiB", **(caps or {}), **below}) as engine:
            trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, update=updates[exchange.node % len(updates)],
                              **{"replicas": REPLICAS, **options})  # fmt: skip
            return await work(engine, trainer)

    with meeting(count) as exchanges:
        async with asyncio.timeout(HANG_S):
            return await asyncio.gather(*map(one, exchanges), return_exceptions=True)


async def trained(engine: Engine, trainer: Trainer, batches: Any = BATCHES) -> Found:
    reports = [await trainer.step(*batch) for batch in batches]
    (moved,) = {(report.sent_bytes, report.received_bytes) for report in reports}
    return Found([report.loss for report in reports], [report.grad_norm for report in reports],
                 await trainer.model.state_dict(), await held_moments(trainer), *moved)  # fmt: skip


@pytest.mark.parametrize(("nodes", "clip_norm", "prepare"), covering([2, 3, 4, 1], CLIPS, RUNS, few=2))
async def test_no_number_of_nodes_changes_a_bit(nodes: int, clip_norm: float | None, prepare: Any) -> None:
    async def work(engine: Engine, trainer: Trainer) -> Found:
        prepare(engine)
        return await trained(engine, trainer)

    expected = await yardstick(clip_norm=clip_norm)
    every = await on_nodes(nodes, work, clip_norm=clip_norm)
    for found in every:
        assert (found.losses, found.norms) == (expected.losses, expected.norms)
        assert_same_tensors(found.weights, expected.weights)
        for name, index, piece in found.moments:
            assert np.array_equal(piece, expected.moments[name][index]), name
    covered = sum(piece.size for found in every for *_, piece in found.moments)
    assert covered == sum(moment.size for moment in expected.moments.values()), "each moment stands on one node"
    assert sum(found.sent for found in every) == sum(found.received for found in every)
    assert (sum(found.sent for found in every) > 0) is (nodes > 1)


@pytest.mark.parametrize("device", [law("emulated"), "emulated*2"])
async def test_devices_of_several_nodes_have_equal_bits_under_a_cap(device: str) -> None:
    expected = await yardstick()
    for found in await on_nodes(2, trained, device, caps={"device_memory": await floor_of(SHAPE)}):
        assert (found.losses, found.norms) == (expected.losses, expected.norms)
        assert_same_tensors(found.weights, expected.weights)


@pytest.mark.parametrize(("clip_norm", "prepare", "update"), [
    law(None, RUNS["played"], "auto"), law(0.1, RUNS["by coroutines"], "auto"), law(None, RUNS["played"], "host"),
    law(0.1, RUNS["played"], "host"),
])  # fmt: skip
async def test_gpus_of_several_nodes_have_equal_bits(
    clip_norm: float | None, prepare: Any, update: str, soft_gpu: Any
) -> None:
    async def work(engine: Engine, trainer: Trainer) -> Found:
        prepare(engine)
        return await trained(engine, trainer)

    expected = await yardstick("cuda:0", clip_norm=clip_norm)
    soft_gpu(seed=1)
    for found in await on_nodes(2, work, "cuda:0", clip_norm=clip_norm, update=update):
        assert (found.losses, found.norms) == (expected.losses, expected.norms)
        assert_same_tensors(found.weights, expected.weights)


@pytest.mark.parametrize(("device", "share", "update", "on_host"), [
    ("emulated", 0.3, "auto", "some"), law("emulated*2", 0.3, "auto", "some"), law("emulated", None, "auto", "none"),
    law("emulated", 0.3, "host", "all"), law("emulated", 0.3, "device", "none"), law("emulated*2", None, "host", "all"),
])  # fmt: skip
async def test_every_step_of_node_0_moves_the_planned_bytes(
    device: str, share: float | None, update: str, on_host: str
) -> None:
    caps = {} if share is None else {"device_memory": int(share * STATES)}

    async def work(engine: Engine, trainer: Trainer) -> list[StepReport]:
        return [await trainer.step(*batch) for batch in BATCHES]

    machine = Machine(device=device, host_memory="64MiB", nodes=2, measured=CORES, **caps)
    plan = plan_step(SHAPE.config, SHAPE.work(update=update), machine)
    assert on_host == {0: "none", plan.updates: "all"}.get(plan.updates_on_host, "some")
    reports, _ = await on_nodes(2, work, device, {"rates": CORES, **caps}, update=update)
    moved = [(one.uploaded_bytes, one.downloaded_bytes, one.passed_bytes, one.sent_bytes, one.received_bytes)
             for one in reports]  # fmt: skip
    planned = plan.uploaded_bytes, plan.downloaded_bytes, plan.passed_bytes, plan.sent_bytes, plan.received_bytes
    assert moved[1:] == [planned] * 2 and plan.sent_bytes > 0


@pytest.mark.parametrize(("device", "caps", "update"), [
    ("emulated", {"device_memory": 0.3, "host_memory": 0.6}, "auto"), law("cpu", {"host_memory": 1.5}, "auto"),
    law("emulated", {"device_memory": 0.3, "host_memory": 0.8}, "host"),
])  # fmt: skip
async def test_spill_folders_of_several_nodes_change_no_bit(
    device: str, caps: dict[str, float], update: str, tmp_path: Path
) -> None:
    sizes = {name: int(share * STATES) for name, share in caps.items()}
    for node in range(2):
        (tmp_path / str(node)).mkdir()
    expected = await yardstick()

    async def work(engine: Engine, trainer: Trainer) -> Found:
        found = await trained(engine, trainer)
        assert engine.statistics().spill_read_bytes > 0
        return found

    for found in await on_nodes(2, work, device, sizes, tmp_path, update=update):
        assert (found.losses, found.norms) == (expected.losses, expected.norms)
        assert_same_tensors(found.weights, expected.weights)


@pytest.mark.parametrize(("before", "after"), [(2, 1), law(1, 4), law(3, 2)])
async def test_a_checkpoint_of_some_nodes_is_that_of_one_and_others_go_on(before: int, after: int, tmp_path: Path) -> None:
    async def first(engine: Engine, trainer: Trainer) -> None:
        await trainer.step(*BATCHES[0])
        await trainer.save(tmp_path / "c")

    async def others(engine: Engine, _: Trainer) -> Found:
        trainer = await Trainer.load(engine, tmp_path / "c")
        return await trained(engine, trainer, BATCHES[1:])

    assert await on_nodes(before, first) == [None] * before
    expected = await yardstick()
    for found in await on_nodes(after, others):
        assert found.losses == expected.losses[1:]
        assert_same_tensors(found.weights, expected.weights)
        assert all(np.array_equal(piece, expected.moments[name][index]) for name, index, piece in found.moments)


async def test_a_save_that_fails_on_node_0_fails_on_all(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("a file")

    async def work(engine: Engine, trainer: Trainer) -> str:
        await trainer.step(*BATCHES[0])
        with pytest.raises((ValueError, AsynctileError), match="c is a file; expected a folder"):
            await trainer.save(tmp_path / "c")
        return "refused"

    assert await on_nodes(2, work) == ["refused"] * 2


@pytest.mark.parametrize(("nodes", "device", "updates", "share", "clip_norm", "prepare"), [
    (2, "emulated", "host device", 0.3, 0.1, RUNS["played"]),
    (2, "emulated*2", "host host", None, None, RUNS["by coroutines"]),
    (2, "cpu emulated", "host host", None, None, RUNS["played"]),
    law(3, "emulated", "device host host", 0.3, None, RUNS["played"]),
    law(4, "emulated", "host host host host", 0.15, 0.1, RUNS["by coroutines"]),
    law(2, "emulated*2", "device host", 0.3, 0.1, RUNS["played"]),
    law(3, "emulated", "host host host", None, 0.1, RUNS["played"]),
    law(2, "cpu", "host host", None, None, RUNS["played"]),
])  # fmt: skip
async def test_no_place_of_updates_changes_a_bit_on_nodes(
    nodes: int, device: str, updates: str, share: float | None, clip_norm: float | None, prepare: Any
) -> None:
    async def work(engine: Engine, trainer: Trainer) -> Found:
        prepare(engine)
        return await trained(engine, trainer)

    expected = await yardstick(clip_norm=clip_norm)
    caps = {} if share is None else {"device_memory": max(int(share * STATES), await floor_of(SHAPE))}
    for found in await on_nodes(nodes, work, device, caps, update=updates, clip_norm=clip_norm):
        assert (found.losses, found.norms) == (expected.losses, expected.norms)
        assert_same_tensors(found.weights, expected.weights)
        assert all(np.array_equal(piece, expected.moments[name][index]) for name, index, piece in found.moments)


def spy_on(engine: Engine, said: list[list[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note in `said` what all nodes tell about the places of updates, as the node of `engine` hears it."""
    exchange = exchange_of(engine)
    share = exchange.share

    def shared(topic: str, body: bytes) -> list[bytes]:
        found = share(topic, body)
        said.extend([found] if topic.startswith("updates of step") else [])
        return found

    monkeypatch.setattr(exchange, "share", shared)


async def test_each_node_places_its_updates_by_its_own_rates_and_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[list[bytes]] = []
    recorded: dict[int, set[str]] = {}

    async def work(engine: Engine, trainer: Trainer) -> Found:
        rates = CORES.limited(1e9)
        runtime_of(engine).tiers.rates = replace(rates, updated_per_s=1.0) if exchange_of(engine).node == 1 else rates
        spy_on(engine, said, monkeypatch)
        state, node = model_state_of(trainer.model), exchange_of(engine).node
        record = state.recorded

        async def noted(kind: str, rows: Rows, kept: int, on_host: frozenset[Tile], carriers: tuple[int, ...]) -> Program:
            recorded[node] = {tile.name for tile in on_host}
            return await record(kind, rows, kept, on_host, carriers)

        monkeypatch.setattr(state, "recorded", noted)
        return await trained(engine, trainer)

    expected = await yardstick()
    for found in await on_nodes(2, work, "emulated", {"device_memory": int(0.3 * STATES)}):
        assert found.losses == expected.losses
        assert_same_tensors(found.weights, expected.weights)
    assert recorded[0] == recorded[1] != set(), "all nodes record one program"
    assert len(said) == 4, "two agreements before the first step, and none before later ones"
    assert said[0][0] != b"0" == said[0][1] and all(one == said[0] for one in said)


@pytest.mark.laws
async def test_nodes_whose_ram_is_too_small_for_an_update_make_none_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine("emulated", device_memory=STATES // 4, host_memory=1, spill=tmp_path) as engine:
        with pytest.raises(BudgetError) as caught:
            await lively(engine, SHAPE)
    for node in range(2):
        (tmp_path / str(node)).mkdir()
    slow_link = replace(CORES, updated_per_s=1e12).limited(1e3)
    caps = {"device_memory": STATES // 4, "host_memory": 3 * caught.value.floor, "rates": slow_link}
    said: list[list[bytes]] = []

    async def work(engine: Engine, trainer: Trainer) -> Found:
        spy_on(engine, said, monkeypatch)
        return await trained(engine, trainer)

    for found in await on_nodes(2, work, "emulated", caps, tmp_path):
        assert found.losses == (await yardstick()).losses
    assert b"0" not in said[0] and said[-1] == [b"0", b"0"]
    machine = Machine(device="emulated", nodes=2, spill=True, device_memory=caps["device_memory"],
                      host_memory=caps["host_memory"], measured=slow_link)  # fmt: skip
    assert plan_step(SHAPE.config, SHAPE.work(), machine).updates_on_host == 0


async def test_adapters_train_on_several_nodes_as_on_one() -> None:
    async def work(engine: Engine, trainer: Trainer) -> tuple[list[float], Any]:
        return [(await trainer.step(*batch)).loss for batch in BATCHES], await trainer.model.state_dict()

    options: dict[str, Any] = {"adapters": LoRA(rank=2, targets=("c_attn", "c_fc"), seed=1)}
    ((losses, weights),) = await on_nodes(1, work, **options)
    for found, tensors in await on_nodes(2, work, **options):
        assert found == losses
        assert_same_tensors(tensors, weights)


async def test_nodes_with_other_batches_refuse_to_step_and_stay_as_they_were() -> None:
    async def work(engine: Engine, trainer: Trainer) -> int:
        with pytest.raises(AsynctileError, match="nodes 0 and 1 have other batches or learning rates for step 1"):
            await trainer.step(*BATCHES[exchange_of(engine).node])
        return (await trainer.step(*BATCHES[0])).step

    assert await on_nodes(2, work) == [1, 1]


@pytest.mark.parametrize("call", ["step", law("gradients")])
async def test_a_node_that_refuses_its_batch_tells_the_others_and_all_may_step_again(call: str) -> None:
    async def work(engine: Engine, trainer: Trainer) -> float:
        tokens, targets = BATCHES[0]
        refuses = exchange_of(engine).node == 1
        words = "^tokens contains" if refuses else "^node 1 refused its batch for .*step [01]: tokens contains"
        with pytest.raises(ValueError if refuses else AsynctileError, match=words):
            await getattr(trainer, call)(np.full_like(tokens, SHAPE.config.vocab_size) if refuses else tokens, targets)
        return (await trainer.step(tokens, targets)).loss

    assert await on_nodes(3, work) == (await yardstick()).losses[:1] * 3


@pytest.mark.parametrize(("seed", "options", "words"), [
    (2, {}, "node 1 has weights '[0-9a-f]{16}', and node 0 has '[0-9a-f]{16}'; start all nodes with the same model"),
    law(1, {"clip_norm": 0.5}, "node 1 has clip_norm '0.5', and node 0 has 'None'"),
    law(1, {"recompute": True}, "node 1 has recompute 'True', and node 0 has 'auto'"),
])  # fmt: skip
async def test_nodes_that_are_not_alike_refuse_to_step_and_name_what_differs(
    seed: int, options: dict[str, Any], words: str
) -> None:
    async def work(engine: Engine, trainer: Trainer) -> int:
        if exchange_of(engine).node == 1:
            other = Trainer(await lively(engine, SHAPE, seed), OPTIMIZER, **{"replicas": REPLICAS, **options})
            with pytest.raises(AsynctileError, match=words):
                await other.step(*BATCHES[0])
        else:
            with pytest.raises(AsynctileError, match=words):
                await trainer.step(*BATCHES[0])
        return (await trainer.step(*BATCHES[0])).step

    assert await on_nodes(2, work) == [1, 1]


@pytest.mark.parametrize(("kernel", "call", "torn"), [("embed_tokens", 1, False), law("gelu", 2, False), ("adamw", 2, True)])
async def test_a_kernel_that_fails_on_one_node_ends_the_step_on_all_at_once(kernel: str, call: int, torn: bool) -> None:
    async def work(engine: Engine, trainer: Trainer) -> str:
        await trainer.step(*BATCHES[0])
        before = await trainer.model.state_dict()
        if exchange_of(engine).node == 1:
            Once(engine, kernel, call, broken)
        with pytest.raises(TornModelError if torn else AsynctileError) as caught:
            await trainer.step(*BATCHES[1])
        if not torn:
            assert_same_tensors(await trainer.model.state_dict(), before)
        return str(caught.value)

    zero, one = await on_nodes(2, work)  # a watchdog would have other words
    assert "the kernel broke" in one and re.search(r"node 1 \(127.0.0.1:\d+\) gave up: .*the kernel broke", zero)


async def test_a_step_that_fails_on_one_node_before_its_update_fails_on_all_and_leaves_their_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(engine: Engine, trainer: Trainer) -> str:
        await trainer.step(*BATCHES[0])
        before = await trainer.model.state_dict()
        exchange = exchange_of(engine)
        if exchange.node == 1:
            exchange.abort("the test wants it")
        with pytest.raises(AsynctileError, match="gave up: the test wants it"):
            await trainer.step(*BATCHES[1])
        assert_same_tensors(await trainer.model.state_dict(), before)
        return "as before"

    assert await on_nodes(2, work) == ["as before"] * 2


async def test_a_node_that_gives_up_behind_the_loss_tears_the_model_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(engine: Engine, trainer: Trainer) -> str:
        exchange, state = exchange_of(engine), model_state_of(trainer.model)
        share = exchange.share

        def shared(topic: str, body: bytes) -> list[bytes]:
            if topic == "end of step 2" and exchange.node == 1:
                exchange.abort("the test wants it")
            return share(topic, body)

        monkeypatch.setattr(exchange, "share", shared)
        await trainer.step(*BATCHES[0])
        with pytest.raises(TornModelError, match=r"step 2 failed after its first update: node 1 .*gave up: the test wants it"):
            await trainer.step(*BATCHES[1])
        with pytest.raises(TornModelError):
            state.check_whole("step")
        return "torn"

    assert await on_nodes(2, work) == ["torn"] * 2
