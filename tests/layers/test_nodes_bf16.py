"""Trainings in bf16 on several nodes: each master weight stands on one of them, and all have the copies to compute with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.errors import AsynctileError
from asynctile.kernels.bf16 import to_bf16
from asynctile.layers import LoRA, Model, StepReport, Trainer
from asynctile.layers.carriers import table
from asynctile.layers.machine import Machine
from asynctile.layers.model import model_state_of
from asynctile.layers.parameters import Parameters
from asynctile.layers.plan import Plan, plan_step
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.program.operation import READ
from asynctile.program.parts import part_of
from asynctile.program.program import Shipment
from asynctile.share import runtime_of
from tests.laws import covering, law
from tests.layers.test_bf16_training import bf16_engine
from tests.layers.test_checkpoint_parts import tensors_in
from tests.layers.test_nodes import CLIPS, Found, exchange_of, on_nodes, trained
from tests.layers.test_replicas_trained import BATCHES, REPLICAS, SHAPE, STATES, yardstick
from tests.layers.training import OPTIMIZER, assert_same_tensors, lively

LORA = LoRA(rank=2, targets=("c_attn", "c_fc"), seed=1)
_alone: dict[float | None, Found] = {}


async def in_bf16(count: int, work: Any, caps: dict[str, Any] | None = None, **options: Any) -> list[Any]:
    return await on_nodes(count, work, "emulated", caps, make=bf16_engine, **options)


async def one_alone(clip_norm: float | None) -> Found:
    """Return the outcome of one node."""
    if clip_norm not in _alone:
        (_alone[clip_norm],) = await in_bf16(1, trained, clip_norm=clip_norm)
    return _alone[clip_norm]


async def lend(trainer: Trainer) -> None:
    state = model_state_of(trainer.model)
    await state.runtime.call(state.lend())


def assert_alike(found: Found, alone: Found) -> None:
    assert (found.losses, found.norms) == (alone.losses, alone.norms)
    assert_same_tensors(found.weights, alone.weights)


@pytest.mark.parametrize(
    ("nodes", "clip_norm", "share", "update"), covering([2, 3, 4], CLIPS, [None, 0.3], ["auto", "host"], few=2)
)
async def test_no_number_of_nodes_changes_a_bit_in_bf16(
    nodes: int, clip_norm: float | None, share: float | None, update: str
) -> None:
    caps = {} if share is None else {"device_memory": int(share * STATES)}
    alone = await one_alone(clip_norm)
    every = await in_bf16(nodes, trained, caps, clip_norm=clip_norm, update=update)
    for found in every:
        assert_alike(found, alone)
        moments = {(name, str(index)): piece for name, index, piece in alone.moments}
        assert all(np.array_equal(piece, moments[name, str(index)]) for name, index, piece in found.moments)
    assert sum(len(found.moments) for found in every) == len(alone.moments)


async def test_each_master_stands_on_one_node_and_its_copy_on_all() -> None:
    async def work(engine: Engine, trainer: Trainer) -> list[str]:
        await trainer.step(*BATCHES[0])
        masters, copies, read = await trainer.model.state_dict(), 0, runtime_of(engine).read
        state, found = model_state_of(trainer.model), list[str]()
        here = set(state.standing())
        for parameter in state.parameters.values():
            for key, copy in parameter.copies.items():
                copies += 1
                if parameter.weights[key] in here:
                    found.append(copy.name)
                assert copy in here
                assert np.array_equal(parameter.cut(await read(copy), *key),
                                      to_bf16(masters[parameter.name][parameter.index(*key)]))
            if not parameter.copies:
                assert here.issuperset(parameter.weights.values()), "vectors are read as they are"
        assert 0 < len(found) < copies
        return [*found, *["all"] * (copies - len(found))]

    zero, one = await in_bf16(2, work)
    masters = [name for name in (*zero, *one) if name != "all"]
    assert len(masters) == len(set(masters)) == len(zero) == len(one)


@pytest.mark.laws
async def test_every_node_gets_all_gradients_in_bf16_with_the_bits_of_one() -> None:
    async def work(engine: Engine, trainer: Trainer) -> Any:
        return await trainer.gradients(*BATCHES[0])

    (alone,) = await in_bf16(1, work)
    for found in await in_bf16(3, work, {"device_memory": STATES // 2}):
        assert_same_tensors(found, alone)


@pytest.mark.parametrize(("before", "after"), [(2, 1), law(1, 3), law(3, 2)])
async def test_a_checkpoint_of_bf16_nodes_holds_the_masters_and_others_go_on(before: int, after: int, tmp_path: Path) -> None:
    async def first(engine: Engine, trainer: Trainer) -> Any:
        await trainer.step(*BATCHES[0])
        await trainer.save(tmp_path / "c")
        return await trainer.model.state_dict()

    async def others(engine: Engine, _: Trainer) -> Found:
        return await trained(engine, await Trainer.load(engine, tmp_path / "c"), BATCHES[1:])

    for masters in await in_bf16(before, first):
        assert {name: value.tobytes() for name, value in masters.items()} == tensors_in(tmp_path / "c", "model.safetensors")
    alone = await one_alone(None)
    for found in await in_bf16(after, others):
        assert found.losses == alone.losses[1:]
        assert_same_tensors(found.weights, alone.weights)


async def test_a_node_saves_masters_that_others_lend(tmp_path: Path) -> None:
    async def work(engine: Engine, trainer: Trainer) -> str | None:
        await trainer.step(*BATCHES[0])
        if exchange_of(engine).node == 1:
            await lend(trainer)
        else:
            await trainer.model.save_pretrained(tmp_path / "m")
        weights = await trainer.model.state_dict()
        assert {name: value.tobytes() for name, value in weights.items()} == tensors_in(tmp_path / "m", "model.safetensors")
        await trainer.step(*BATCHES[1])
        return trainer.model.last_checkpoint

    assert await in_bf16(2, work) == [str(tmp_path / "m"), None]


async def test_a_save_of_masters_that_is_refused_on_one_node_ends_the_training_on_all(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("a file")

    async def work(engine: Engine, trainer: Trainer) -> str:
        zero = exchange_of(engine).node == 0
        with pytest.raises(ValueError if zero else AsynctileError, match="m is a file; expected a folder"):
            await (trainer.model.save_pretrained(tmp_path / "m") if zero else lend(trainer))
        return "refused"

    assert await in_bf16(2, work) == ["refused"] * 2


async def test_adapters_train_in_bf16_on_several_nodes_as_on_one(tmp_path: Path) -> None:
    async with bf16_engine() as engine:
        await (await lively(engine, SHAPE)).save_pretrained(tmp_path / "base")

    async def work(engine: Engine, _: Trainer) -> tuple[list[float], Any]:
        model = await Model.from_pretrained(engine, tmp_path / "base", tile=SHAPE.tile)
        trainer = Trainer(model, OPTIMIZER, replicas=REPLICAS, adapters=LORA)
        losses = [(await trainer.step(*batch)).loss for batch in BATCHES]
        exchange = exchange_of(engine)
        await trainer.save(tmp_path / f"c{exchange.nodes}")
        await model.save_adapter(tmp_path / f"a{exchange.nodes}{exchange.node}")
        return losses, await model.state_dict()

    ((losses, weights),) = await in_bf16(1, work)
    for found, tensors in await in_bf16(2, work):
        assert found == losses
        assert_same_tensors(tensors, weights)
    adapter = tensors_in(tmp_path / "c1", "adapter_model.safetensors")
    assert all(tensors_in(tmp_path / one, "adapter_model.safetensors") == adapter for one in ("c2", "a10", "a20", "a21"))


@pytest.mark.parametrize(("clip_norm", "share", "update"), [
    law(None, None, "auto"), law(0.1, 0.5, "auto"), law(None, 0.5, "host"), law(0.1, 0.5, "host"),
])  # fmt: skip
async def test_gpus_have_equal_bits_in_bf16_on_nodes(
    clip_norm: float | None, share: float | None, update: str, soft_gpu: Any
) -> None:
    caps = {} if share is None else {"device_memory": max(int(share * STATES), 48 << 10)}
    expected = await yardstick("cuda:0", "bf16", clip_norm)
    soft_gpu(seed=1)
    for found in await on_nodes(2, trained, "cuda:0", {"precision": "bf16", **caps}, clip_norm=clip_norm, update=update):
        assert (found.losses, found.norms) == (expected.losses, expected.norms)
        assert_same_tensors(found.weights, expected.weights)


@pytest.mark.usefixtures("soft_gpu")
async def test_every_step_of_node_0_in_bf16_moves_the_planned_bytes() -> None:
    caps: dict[str, Any] = {"device_memory": 96 << 10, "precision": "bf16"}

    async def work(engine: Engine, trainer: Trainer) -> list[StepReport]:
        return [await trainer.step(*batch) for batch in BATCHES]

    def planned(nodes: int) -> Plan:
        return plan_step(SHAPE.config, SHAPE.work(), Machine(device="cuda:0", nodes=nodes, **caps))

    reports, others = await on_nodes(2, work, "cuda:0", caps)
    moved = [(one.uploaded_bytes, one.downloaded_bytes, one.sent_bytes, one.received_bytes) for one in reports]
    plan = planned(2)
    assert moved[1:] == [(plan.uploaded_bytes, plan.downloaded_bytes, plan.sent_bytes, plan.received_bytes)] * 2
    assert [one.loss for one in reports] == [one.loss for one in others] == (await yardstick("cuda:0", "bf16")).losses
    assert plan.resident_bytes < 0.8 * planned(1).resident_bytes, "masters and moments of other nodes do not count"


def test_nodes_send_matrices_in_half_the_bytes() -> None:
    """Weights that other nodes are sent are copies in bf16; sums of gradients are float32 as in fp32."""

    def sent(precision: str) -> int:
        parameters = Parameters(SHAPE.config, Tiling(SHAPE.config, SHAPE.tile), precision)
        rows = parameters.tiling.rows(SHAPE.batch, SHAPE.length, 1, REPLICAS)
        whole = record("step", parameters, rows, carriers=table(REPLICAS, 2), nodes=2)
        entries = [entry for node in (0, 1) for entry in part_of(whole, node, 1).entries]
        return sum(entry.tile.nbytes for entry in entries if isinstance(entry, Shipment) and entry.access == READ)

    parameters = Parameters(SHAPE.config, Tiling(SHAPE.config, SHAPE.tile), "bf16")
    copies = sum(tile.nbytes for item in parameters.values() for tile in item.copies.values())
    assert sent("fp32") - sent("bf16") == copies > 0
