"""Adapters and frozen tensors on disk: a checkpoint without the base, resumed bit for bit, and refusals of another base.

test_adapter_files.py reads damaged folders, test_checkpoint.py checkpoints of whole models.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from asynctile import CheckpointError, Engine
from asynctile.layers import AdamW, LoRA, Model, Trainer
from asynctile.layers.model import model_state_of
from tests.laws import law
from tests.layers.families import FAMILIES
from tests.layers.saving import BATCHES, DEVICES, bytes_of
from tests.layers.shapes import Shape
from tests.layers.training import OPTIMIZER, SMALL, assert_same_tensors, batches_of, lively, states_of

LORA = LoRA(rank=3, alpha=5.0, targets=("attn.c_proj", "c_fc"))
SHAPES: dict[str, tuple[Shape, LoRA]] = {
    "gpt2": (SMALL, LORA),
    "qwen3": (FAMILIES["qwen3"], LoRA(rank=2, targets=("q_proj", "v_proj", "down_proj"))),
}


async def based(engine: Engine, folder: Path, shape: Shape = SMALL) -> Model:
    """Return a model that was loaded from a folder, which is made first if it is not there."""
    if not folder.exists():
        made = await lively(engine, shape)
        await made.save_pretrained(folder)
        await made.release()
    return await Model.from_pretrained(engine, folder, tile=shape.tile)


async def adapted(engine: Engine, folder: Path, shape: Shape = SMALL, lora: LoRA = LORA, **more: Any) -> Trainer:
    """Return a trainer of an adapter, after two steps, so that B is not zero."""
    trainer = Trainer(await based(engine, folder, shape), OPTIMIZER, adapters=lora, **more)
    for batch in batches_of(shape, 2):
        await trainer.step(*batch)
    return trainer


@pytest.mark.parametrize(("options", "case", "wait", "clip_norm"), [
    (DEVICES["emulated"], "gpt2", False, None),
    (DEVICES["cpu"], "qwen3", True, 0.5),
    law(DEVICES["cpu"], "gpt2", False, 0.5),
    law({"device": "emulated", "device_memory": "32KiB"}, "qwen3", True, None),
])  # fmt: skip
async def test_a_resumed_training_of_an_adapter_has_equal_bits(
    options: dict[str, Any], case: str, wait: bool, clip_norm: float | None, tmp_path: Path
) -> None:
    shape, lora = SHAPES[case]
    batches = batches_of(shape, 4)
    async with Engine(**options) as engine:
        trainer = await adapted(engine, tmp_path / "base", shape, lora, clip_norm=clip_norm, micro_batches=2)
        trainer.data_state = {"at": 2}
        await trainer.save(tmp_path / "c", wait=wait)
        for batch in batches[2:]:
            await trainer.step(*batch)
        await trainer.saved()
        expected, logits = await states_of(trainer), await trainer.model.logits(batches[0][0])
    async with Engine("emulated", prefetch=0) as engine:
        again = await Trainer.load(engine, tmp_path / "c")
        assert (again.step_count, again.clip_norm, again.optimizer, again.data_state) == (2, clip_norm, OPTIMIZER, {"at": 2})
        assert again.model.adapter is not None
        assert (again.model.adapter.rank, again.model.adapter.alpha) == (lora.rank, lora.alpha)
        for batch in batches[2:]:
            await again.step(*batch)
        assert_same_tensors(await states_of(again), expected)
        assert np.array_equal(await again.model.logits(batches[0][0]), logits)
        await again.save(tmp_path / "again")
        fresh = await Trainer.load(engine, tmp_path / "again")
        assert_same_tensors(await states_of(fresh), expected)


@pytest.mark.parametrize("weights", ["stored", law("float32")])
async def test_a_base_is_kept_again_as_it_was(tmp_path: Path, weights: str) -> None:
    """Frozen weights in bfloat16 stay so, and the bits are those over float32."""
    shape, lora = SHAPES["qwen3"]
    batches = batches_of(shape, 3)
    async with Engine("cpu") as engine:
        made = await lively(engine, shape)
        await made.save_pretrained(tmp_path / "base", dtype="bfloat16")
        model = await Model.from_pretrained(engine, tmp_path / "base", tile=shape.tile, weights=weights)
        trainer = Trainer(model, OPTIMIZER, adapters=lora)
        await trainer.step(*batches[0])
        await trainer.save(tmp_path / "c")
        again = await Trainer.load(engine, tmp_path / "c")
        assert model_state_of(again.model).parameters.stored == model_state_of(model).parameters.stored
        assert bool(model_state_of(again.model).parameters.stored) == (weights == "stored")
        other = await Model.from_pretrained(engine, tmp_path / "base", tile=shape.tile)
        await other.load_adapter(tmp_path / "c")
        assert np.array_equal(await other.logits(batches[1][0]), await again.model.logits(batches[1][0]))
        for batch in batches[1:]:
            assert (await trainer.step(*batch)).loss == (await again.step(*batch)).loss


async def test_a_checkpoint_of_an_adapter_holds_neither_the_base_nor_its_moments(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        trainer = await adapted(engine, tmp_path / "base")
        trainer.model.companions = {"README.md": b"# x\n"}
        told: list[tuple[int, int]] = []
        await trainer.save(tmp_path / "c", progress=lambda *done: told.append(done))
        state = await trainer.model.state_dict()
        await trainer.model.save_adapter(tmp_path / "adapter")
    tensors, moments = (load_file(tmp_path / "c" / f"{name}.safetensors") for name in ("adapter_model", "optimizer"))
    assert set(bytes_of(tmp_path / "c")) == {
        "README.md", "adapter_config.json", "adapter_model.safetensors", "checksums.json", "optimizer.safetensors",
        "trainer.json",
    }  # fmt: skip
    names = {name for name in state if name.startswith("base_model.model.")}
    assert tensors.keys() == names and len(names) == 4
    assert all(np.array_equal(value, state[name]) for name, value in tensors.items())
    assert moments.keys() == {f"{name}.{family}" for name in names for family in ("exp_avg", "exp_avg_sq")}
    assert told[-1] == (6 * sum(value.nbytes for value in tensors.values()),) * 2
    found = json.loads((tmp_path / "c" / "trainer.json").read_text())
    assert found["format"] == 5 and found["base"]["path"] == str(tmp_path / "base") and found["base"]["weights"] == "float32"
    for place in ("c", "adapter"):
        told_by_peft = json.loads((tmp_path / place / "adapter_config.json").read_text())
        assert told_by_peft["base_model_name_or_path"] == str(tmp_path / "base")
        assert (told_by_peft["r"], told_by_peft["lora_alpha"], told_by_peft["fan_in_fan_out"]) == (3, 5, True)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes() == (
        tmp_path / "c" / "adapter_model.safetensors").read_bytes()  # fmt: skip


async def test_a_loaded_adapter_computes_the_same_and_is_trained_on(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        trainer = await adapted(engine, tmp_path / "base")
        await trainer.model.save_adapter(tmp_path / "adapter")
        logits = await trainer.model.logits(BATCHES[0][0])
        model = await based(engine, tmp_path / "base")
        before = await model.logits(BATCHES[0][0])
        assert model.adapter is None
        await model.load_adapter(tmp_path / "adapter")
        assert model.adapter == LORA
        assert np.array_equal(await model.logits(BATCHES[0][0]), logits) and not np.array_equal(before, logits)
        with pytest.raises(ValueError, match="adapter"):
            await model.load_adapter(tmp_path / "adapter")
        weights = await model.state_dict()
        await Trainer(model, AdamW(lr=0.1)).step(*BATCHES[2])
        changed = {name for name, value in (await model.state_dict()).items() if not np.array_equal(value, weights[name])}
        assert changed == {name for name in weights if name.startswith("base_model.")}


async def test_what_cannot_be_loaded_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        trainer = await adapted(engine, tmp_path / "base")
        await trainer.model.save_adapter(tmp_path / "adapter")
        content = bytearray((tmp_path / "adapter" / "adapter_model.safetensors").read_bytes())
        content[-3] ^= 1
        (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(content)
        model = await based(engine, tmp_path / "base")
        logits = await model.logits(BATCHES[0][0])
        with pytest.raises(CheckpointError, match=r"adapter_model.safetensors is damaged"):
            await model.load_adapter(tmp_path / "adapter")
        assert model.adapter is None and np.array_equal(await model.logits(BATCHES[0][0]), logits)
        await Trainer(model, OPTIMIZER).step(*BATCHES[0])


async def test_a_base_with_other_weights_is_refused_and_one_that_was_moved_is_named(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        trainer = await adapted(engine, tmp_path / "base")
        await trainer.save(tmp_path / "c")
        await trainer.model.save_adapter(tmp_path / "adapter")
        expected = await states_of(trainer)
        other = await lively(engine, SMALL, seed=2)
        await other.save_pretrained(tmp_path / "other")
        shutil.move(tmp_path / "base", tmp_path / "moved")
        with pytest.raises(CheckpointError, match=rf"{tmp_path / 'c'} holds an adapter, and its base .*{tmp_path / 'base'} is"):
            await Trainer.load(engine, tmp_path / "c")
        assert_same_tensors(await states_of(await Trainer.load(engine, tmp_path / "c", base=tmp_path / "moved")), expected)
        with pytest.raises(CheckpointError, match=f"c holds an adapter of another base: the weights in {tmp_path / 'other'}"):
            await Trainer.load(engine, tmp_path / "c", base=tmp_path / "other")
        with pytest.raises(CheckpointError, match="is an adapter of another base"):
            await (await Model.from_pretrained(engine, tmp_path / "other")).load_adapter(tmp_path / "adapter")
        await Trainer(other, OPTIMIZER).save(tmp_path / "whole")
        with pytest.raises(ValueError, match="whole holds a whole model, which has no base; leave base out"):
            await Trainer.load(engine, tmp_path / "whole", base=tmp_path / "moved")
        with pytest.raises(CheckpointError, match=r"adapter is an adapter without training state .* load it with load_adapter"):
            await Trainer.load(engine, tmp_path / "adapter")


async def test_an_adapter_whose_base_is_in_no_folder_can_be_saved_alone(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        made = Trainer(await lively(engine, SMALL), OPTIMIZER, adapters=LORA)
        whole = Trainer(await based(engine, tmp_path / "base"), OPTIMIZER)
        await whole.step(*BATCHES[0])
        await whole.save(tmp_path / "whole")
        assert model_state_of(whole.model).base is None, "a step has changed the weights"
        again = await Trainer.load(engine, tmp_path / "whole")
        assert model_state_of(again.model).base is not None, "a checkpoint of a whole model is a model folder"
        with pytest.raises(ValueError, match=r"the base of this one was not loaded from a folder, .* call save_pretrained and"):
            await made.save(tmp_path / "c")
        await made.model.save_adapter(tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base", "whole"]


async def test_a_save_never_replaces_another_kind_of_folder(tmp_path: Path) -> None:
    """Least of all the base, whose weights are nowhere else."""
    async with Engine("cpu") as engine:
        trainer = await adapted(engine, tmp_path / "base")
        before = bytes_of(tmp_path / "base")
        for save in (trainer.save, trainer.model.save_adapter):
            with pytest.raises(ValueError, match=r"base contains .* and no adapter alone, and a save replaces the whole"):
                await save(tmp_path / "base")
        with pytest.raises(ValueError, match=r"has an adapter, which is saved alone; call save_adapter, .*asynctile merge"):
            await trainer.model.save_pretrained(tmp_path / "new")
        whole = await based(engine, tmp_path / "base")
        with pytest.raises(ValueError, match="the model has no adapter to save"):
            await whole.save_adapter(tmp_path / "new")
        await trainer.save(tmp_path / "c")
        await trainer.save(tmp_path / "c")
        assert bytes_of(tmp_path / "base") == before and not (tmp_path / "new").exists()


def edited(**changes: Any) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        state = json.loads((folder / "trainer.json").read_text()) | changes
        (folder / "trainer.json").write_text(json.dumps(state))

    return edit


@pytest.mark.parametrize(("damage", "said"), [
    (edited(base=3), "has base 3, expected a path, a fingerprint and weights"),
    (edited(base={"path": "x", "fingerprint": None, "weights": "stored"}), "expected a path, a fingerprint and weights"),
    (edited(base={"path": "\x1b[2J", "fingerprint": "x", "weights": "float32"}), "and its base cannot be loaded"),
    (edited(freeze="lora_A"), "was damaged or edited: freeze is 'lora_A'"),
    (edited(freeze=["*lora_A*", "*lora_B*"]), "was damaged or edited: freeze is"),
    (edited(format=6), "formats up to 5"),
    (lambda folder: (folder / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
    (lambda folder: shutil.copy(folder / "adapter_model.safetensors", folder / "optimizer.safetensors"), "has no tensor base"),
])  # fmt: skip
async def test_a_damaged_checkpoint_of_an_adapter_is_refused_in_one_line(
    tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    async with Engine("cpu") as engine:
        trainer = Trainer(await based(engine, tmp_path / "base"), OPTIMIZER, adapters=LORA)
        await trainer.save(tmp_path / "c")
        (tmp_path / "c" / "checksums.json").unlink()
        damage(tmp_path / "c")
        with pytest.raises(CheckpointError) as caught:
            await Trainer.load(engine, tmp_path / "c")
    assert said in str(caught.value) and str(tmp_path / "c") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wait", [True, False])
async def test_a_model_with_frozen_tensors_is_saved_whole_and_resumes_with_equal_bits(tmp_path: Path, wait: bool) -> None:
    freeze = ("*wte*", "*.bias")
    async with Engine("cpu", host_memory="64MiB") as engine:
        trainer = Trainer(await lively(engine, SMALL), OPTIMIZER, freeze=freeze)
        before = await trainer.model.state_dict()
        await trainer.step(*BATCHES[0])
        await trainer.save(tmp_path / "c", wait=wait)
        await trainer.step(*BATCHES[1])
        await trainer.saved()
        expected, after = await states_of(trainer), await trainer.model.state_dict()
    frozen = {name for name in before if "wte" in name or name.endswith(".bias")}
    assert {name for name in before if np.array_equal(before[name], after[name])} == frozen
    moments = load_file(tmp_path / "c" / "optimizer.safetensors")
    assert {name.rpartition(".")[0] for name in moments} == before.keys() - frozen
    assert load_file(tmp_path / "c" / "model.safetensors").keys() == before.keys()
    assert json.loads((tmp_path / "c" / "trainer.json").read_text())["freeze"] == list(freeze)
    async with Engine("cpu") as engine:
        again = await Trainer.load(engine, tmp_path / "c")
        assert again.freeze == freeze
        await again.step(*BATCHES[1])
        assert_same_tensors(await states_of(again), expected)


async def test_checkpoints_of_whole_models_keep_their_format(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        await Trainer(await lively(engine, SMALL), OPTIMIZER).save(tmp_path / "c")
    state = json.loads((tmp_path / "c" / "trainer.json").read_text())
    assert state["format"] == 4 and not state.keys() & {"freeze", "base"}
