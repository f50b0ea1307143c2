"""Checkpoints that several nodes write together: shards of each, whole or not at all, read by any number of nodes."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.errors import AsynctileError, CheckpointError
from asynctile.layers import LoRA, Model, Trainer
from asynctile.nodes.tcp_exchange import TcpExchange
from asynctile.storage.tensors import TensorReader, TensorWriter
from tests.laws import law
from tests.layers.test_nodes import Found, exchange_of, on_nodes, trained
from tests.layers.test_replicas_trained import BATCHES, REPLICAS, SHAPE, STATES
from tests.layers.training import OPTIMIZER, assert_same_tensors, lively
from tests.nodes.meetings import comes

FILES = ("model", "optimizer")


def tensors_in(folder: Path, file: str) -> dict[str, bytes]:
    with TensorReader(folder / file) as reader:
        return {name: reader.read(name).tobytes() for name in reader.names()}


async def test_each_node_writes_shards_that_an_index_names_and_checksums_cover(tmp_path: Path) -> None:
    async def work(engine: Engine, trainer: Trainer) -> list[tuple[int, int]]:
        said: list[tuple[int, int]] = []
        await trainer.step(*BATCHES[0])
        await trainer.save(tmp_path / "c", progress=lambda done, total: said.append((done, total)))
        return said

    progress = await on_nodes(3, work)
    assert all(said[-1][0] == said[-1][1] for said in progress)
    assert sum(said[-1][1] for said in progress) == 2 * STATES
    for file in FILES:
        shards = [f"{file}-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
        index = json.loads((tmp_path / "c" / f"{file}.safetensors.index.json").read_text())
        assert sorted({*index["weight_map"].values()}) == shards
        sizes = [(tmp_path / "c" / shard).stat().st_size for shard in shards]
        assert max(sizes) < 0.6 * sum(sizes)
    whole = (tmp_path / "c" / shards[1]).read_bytes()
    (tmp_path / "c" / shards[1]).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    async with Engine("cpu") as engine:
        with pytest.raises(CheckpointError, match=r"optimizer-00002-of-00003\.safetensors is damaged: its checksum"):
            await Trainer.load(engine, tmp_path / "c")


async def test_adapters_saved_on_several_nodes_go_on_as_on_one(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        await (await lively(engine, SHAPE)).save_pretrained(tmp_path / "base")
    lora = LoRA(rank=2, targets=("c_attn", "c_fc"), seed=1)

    async def first(engine: Engine, _: Trainer) -> None:
        model = await Model.from_pretrained(engine, tmp_path / "base", tile=SHAPE.tile)
        trainer = Trainer(model, OPTIMIZER, replicas=REPLICAS, adapters=lora)
        await trainer.step(*BATCHES[0])
        await trainer.save(tmp_path / f"c{exchange_of(engine).nodes}")

    async def second(engine: Engine, _: Trainer) -> Found:
        return await trained(engine, await Trainer.load(engine, tmp_path / "c2"), BATCHES[1:])

    for count in (1, 2):
        assert await on_nodes(count, first) == [None] * count
    for file in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert tensors_in(tmp_path / "c1", file) == tensors_in(tmp_path / "c2", file)
    assert (tmp_path / "c2" / "adapter_model.safetensors").exists()  # PEFT reads no index
    (alone,), both = await on_nodes(1, second), await on_nodes(2, second)
    for found in both:
        assert found.losses == alone.losses
        assert_same_tensors(found.weights, alone.weights)


async def test_a_node_that_does_not_see_the_folder_ends_the_save_before_a_byte_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(TensorWriter, "__init__", lambda _, path, *args: written.append(path))

    async def work(engine: Engine, trainer: Trainer) -> str:
        with pytest.raises((ValueError, AsynctileError)) as caught:
            await trainer.save(tmp_path / f"disk{exchange_of(engine).node}" / "c")
        return str(caught.value)

    (tmp_path / "disk0").mkdir()
    zero, one = await on_nodes(2, work)
    assert f"node 1 does not see the folder that node 0 fills for {tmp_path}/disk1/c" in one
    assert "gave up: node 1 does not see the folder" in zero and "\n" not in zero + one
    assert list(tmp_path.rglob("*")) == [tmp_path / "disk0"] and not written


async def test_nodes_with_other_models_save_nothing_before_their_first_step(tmp_path: Path) -> None:
    async def work(engine: Engine, _: Trainer) -> str:
        model = await Model.create(engine, SHAPE.config, seed=1 + exchange_of(engine).node, tile=SHAPE.tile)
        with pytest.raises(AsynctileError) as caught:
            await Trainer(model, OPTIMIZER, replicas=REPLICAS).save(tmp_path / "c")
        return str(caught.value)

    assert all("node 1 has weights" in words for words in await on_nodes(2, work))
    assert not list(tmp_path.iterdir())


async def test_a_tile_that_cannot_be_sent_ends_the_save_at_once_on_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(engine: Engine, trainer: Trainer) -> str:
        await trainer.step(*BATCHES[0])
        monkeypatch.setattr(TcpExchange, "send", unsent)
        with pytest.raises((AsynctileError, OSError)) as caught:
            await trainer.save(tmp_path / "c")
        return str(caught.value)

    def unsent(*args: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    assert all("Input/output error" in words for words in await on_nodes(2, work))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("who", [0, law(1)])
async def test_a_full_disk_on_one_node_is_named_by_all_and_leaves_the_older_checkpoint(
    who: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, abort, left = TensorWriter.write, TcpExchange.abort, list[tuple[int, bool]]()

    def noted(exchange: TcpExchange, why: str) -> None:
        left.append((exchange.node, any(tmp_path.glob(".c.*.new"))))
        abort(exchange, why)

    def full(writer: TensorWriter, *args: Any) -> None:
        if writer.path.name == f"optimizer-0000{who + 1}-of-00003.safetensors":
            raise CheckpointError("cannot write") from OSError(errno.ENOSPC, "No space left on device")
        if writer.path.name == "optimizer-00003-of-00003.safetensors":
            comes(lambda: not writer.path.parent.exists())  # node 0 has removed the folder
            raise CheckpointError("cannot write") from OSError(errno.ENOENT, "No such file or directory")
        write(writer, *args)

    async def work(engine: Engine, trainer: Trainer) -> str:
        await trainer.step(*BATCHES[0])
        await trainer.save(tmp_path / "c")
        await trainer.step(*BATCHES[1])
        monkeypatch.setattr(TensorWriter, "write", full)
        monkeypatch.setattr(TcpExchange, "abort", noted)
        with pytest.raises(AsynctileError) as caught:
            await trainer.save(tmp_path / "c")
        assert caught.value.__cause__ is not caught.value
        return str(caught.value)

    for node, words in enumerate(await on_nodes(3, work)):
        assert f"cannot save {tmp_path}/c: No space left on device" in words
        assert (f"node {who} (" in words) is (node != who)
    assert left[0] == (who, True)  # the others hear of it before the folder goes
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    async with Engine("cpu") as engine:
        assert (await Trainer.load(engine, tmp_path / "c")).step_count == 1
