"""Reading a checkpoint: damage, later formats, edited settings, other folders; and it resumes bit for bit.

test_saving.py tests saving.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import CheckpointError, Engine
from asynctile.layers import GPT2, AdamW, Trainer
from asynctile.share import runtime_of
from tests.laws import covering
from tests.layers.saving import BATCHES, DEVICES, FILES, bytes_of, trainer_on
from tests.layers.training import OPTIMIZER, assert_same_tensors, floor_of, states_of

Damage = Callable[[Path], object]


@pytest.fixture(params=DEVICES.values(), ids=DEVICES.keys())
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "whole"

    async def write() -> None:
        async with Engine("cpu") as engine:
            await (await trainer_on(engine, steps=1)).save(folder)

    asyncio.run(write())
    return folder


@pytest.fixture
def copied(checkpoint: Path, tmp_path: Path) -> Iterator[Path]:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def flipped(name: str, where: float) -> Damage:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[int(where * len(content))] ^= 1
        (folder / name).write_bytes(content)

    return damage


def missing(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("name", "damage"),
    [*((name, flipped(name, 0.3)) for name in FILES), ("model.safetensors", flipped("model.safetensors", 0.0)),
     ("optimizer.safetensors", flipped("optimizer.safetensors", 0.999)),
     *((name, missing(name)) for name in FILES if name not in ("checksums.json", "trainer.json"))],
)  # fmt: skip
async def test_damage_is_found_by_checksums(copied: Path, name: str, damage: Damage) -> None:
    damage(copied)
    async with Engine("cpu") as engine:
        with pytest.raises(CheckpointError, match=str(copied)) as caught:
            await Trainer.load(engine, copied)
        # A flipped bit of the checksums may accuse any file.
        assert name in str(caught.value) or name == "checksums.json"
        assert engine.statistics().operations == 0
        if name == "model.safetensors":
            with pytest.raises(CheckpointError, match=name):
                await GPT2.from_pretrained(engine, copied)


def cut(name: str, keep: float) -> Damage:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * keep)])

    return damage


def edited(name: str = "trainer.json", **changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        state = json.loads((folder / name).read_text()) | changes
        (folder / name).write_text(json.dumps({key: value for key, value in state.items() if value != "missing"}))

    return damage


def written(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


#: Damage that nothing but the content tells.
DAMAGES: dict[str, Damage] = {
    "weights cut in half": cut("model.safetensors", 0.5),
    "weights short of a byte": cut("model.safetensors", 0.99999),
    "weights empty": cut("model.safetensors", 0),
    "weights are noise": written("model.safetensors", b"\xff" * 4096),
    "weights missing": missing("model.safetensors"),
    "moments cut": cut("optimizer.safetensors", 0.7),
    "moments are the weights": lambda folder: shutil.copy(folder / "model.safetensors", folder / "optimizer.safetensors"),
    "moments missing": missing("optimizer.safetensors"),
    "config cut": cut("config.json", 0.5),
    "config of another model": edited("config.json", n_embd=48),
    "config missing": missing("config.json"),
    "state cut": cut("trainer.json", 0.5),
    "state is a list": written("trainer.json", b"[1, 2]"),
    **{f"{name} is {value!r}": edited(**{name: value}) for name, value in (
        ("step_count", "missing"), ("step_count", -1), ("skipped_count", True), ("surroundings", []), ("data_state", 3),
        ("recompute", "no"), ("tile", "x"), ("optimizer", None), ("optimizer", {"speed": 3}), ("clip_norm", "x"),
        ("micro_batches", "two"), ("format", 1.5), ("format", "new"),
    )},
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
async def test_a_damaged_checkpoint_is_refused_in_one_line(copied: Path, damage: Damage) -> None:
    damage(copied)
    (copied / "checksums.json").unlink()
    async with Engine("cpu") as engine:
        with pytest.raises(CheckpointError, match=str(copied)) as caught:
            await Trainer.load(engine, copied)
        assert "\n" not in str(caught.value)
        assert engine.statistics().operations == 0


async def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("hello")
    (tmp_path / "file").write_text("hello")
    async with Engine("cpu") as engine:
        for name in ("foreign", "file", "nowhere"):
            for load in (Trainer.load, GPT2.from_pretrained):
                with pytest.raises(CheckpointError, match=name):
                    await load(engine, tmp_path / name)


async def test_a_flipped_bit_in_a_model_without_its_training_is_found(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        model = (await trainer_on(engine)).model
        for name in ("config.json", "generation_config.json", "model.safetensors"):
            await model.save_pretrained(tmp_path / "model")
            content = bytearray((tmp_path / "model" / name).read_bytes())
            content[-2] ^= 1
            (tmp_path / "model" / name).write_bytes(content)
            with pytest.raises(CheckpointError, match=rf"{name} is damaged: its checksum is"):
                await GPT2.from_pretrained(engine, tmp_path / "model")


async def test_without_checksums_a_checkpoint_loads_unchecked(copied: Path) -> None:
    (copied / "checksums.json").unlink()
    content = bytearray((copied / "model.safetensors").read_bytes())
    content[-2] ^= 1
    (copied / "model.safetensors").write_bytes(content)
    async with Engine("cpu") as engine:
        assert (await Trainer.load(engine, copied)).step_count == 1


async def test_a_later_format_is_named_before_anything_else(copied: Path) -> None:
    edited(format=99)(copied)
    async with Engine("cpu") as engine:
        with pytest.raises(CheckpointError, match="format 99, but this version of asynctile reads formats up to 5"):
            await Trainer.load(engine, copied)


async def test_a_model_without_its_training_says_how_to_load_it(copied: Path) -> None:
    async with Engine("cpu") as engine:
        (copied / "trainer.json").unlink()
        with pytest.raises(CheckpointError, match=r"without training state.*Model\.from_pretrained"):
            await Trainer.load(engine, copied)
        await GPT2.from_pretrained(engine, copied)


@pytest.mark.parametrize("wait", [True, False])
async def test_a_folder_that_no_save_made_is_not_replaced(tmp_path: Path, wait: bool) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        with pytest.raises(ValueError, match=r"letters contains dear\.txt and no model"):
            await trainer.save(tmp_path / "letters", wait=wait)
        with pytest.raises(ValueError, match=r"letters contains dear\.txt and no model"):
            await trainer.model.save_pretrained(tmp_path / "letters")
        with pytest.raises(ValueError, match="is a file"):
            await trainer.save(tmp_path / "file", wait=wait)
        await trainer.save(tmp_path / "empty", wait=wait)
        await trainer.saved()
    assert (tmp_path / "letters" / "dear.txt").read_text() == "dear"
    assert (tmp_path / "file").read_text() == "mine"


async def test_the_requested_recompute_is_kept_as_by_checkpoints_older_than_that_choice(copied: Path, tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        for recompute in ("auto", True, False):
            trainer = await trainer_on(engine, recompute=recompute)
            await trainer.save(tmp_path / "c")
            assert (await Trainer.load(engine, tmp_path / "c")).recompute == trainer.recompute == recompute
        (copied / "checksums.json").unlink()
        edited(format=1, recompute=False)(copied)
        assert (await Trainer.load(engine, copied)).recompute is False


async def test_the_decay_of_the_rate_is_kept_and_is_a_cosine_in_older_checkpoints(copied: Path, tmp_path: Path) -> None:
    optimizer = AdamW(lr=0.5, decay_steps=9, decay="linear")
    async with Engine("cpu") as engine:
        trainer = Trainer((await trainer_on(engine)).model, optimizer)
        await trainer.save(tmp_path / "c")
        assert (await Trainer.load(engine, tmp_path / "c")).optimizer == optimizer
        old = json.loads((copied / "trainer.json").read_text())["optimizer"]
        assert old.pop("decay") == "cosine"
        edited(format=2, optimizer=old)(copied)
        (copied / "checksums.json").unlink()
        assert (await Trainer.load(engine, copied)).optimizer.decay == "cosine"


@pytest.mark.parametrize(
    ("options", "clip_norm", "micro_batches"),
    covering(DEVICES, {"fused": None, "two-phase": 0.5}, [2, 1]),
    indirect=["options"],
)
async def test_a_resumed_training_has_equal_bits(
    options: dict[str, Any], clip_norm: float | None, micro_batches: int, tmp_path: Path
) -> None:
    """The training resumes elsewhere, after a skipped step, and whatever the process's own random states are."""
    settings = {"clip_norm": clip_norm, "micro_batches": micro_batches}
    async with Engine(**options) as engine:
        trainer = await trainer_on(engine, steps=2, **settings)
        trainer.data_state = {"at": [1, 2.5, "x"]}
        kernels = runtime_of(engine).device.kernels
        true = kernels["cross_entropy"]

        def poisoned(*args: Any) -> None:
            true(*args)
            args[-1][...] = np.nan

        kernels["cross_entropy"] = poisoned
        assert (await trainer.step(*BATCHES[2])).skipped
        kernels["cross_entropy"] = true
        await trainer.save(tmp_path / "c", wait=False)
        before = (str(np.random.get_state()), random.getstate())
        for batch in BATCHES[3:]:
            await trainer.step(*batch)
        assert before == (str(np.random.get_state()), random.getstate()), "something drew from a shared random state"
        await trainer.saved()
        expected = await states_of(trainer)
    async with Engine("emulated", device_memory=await floor_of(), prefetch=0) as engine:
        again = await Trainer.load(engine, tmp_path / "c")
        assert (again.clip_norm, again.micro_batches, again.recompute) == (clip_norm, micro_batches, "auto")
        assert (again.step_count, again.skipped_count, again.optimizer) == (2, 1, OPTIMIZER)
        assert (again.data_state, again.model.last_checkpoint) == ({"at": [1, 2.5, "x"]}, str(tmp_path / "c"))
        for batch in BATCHES[3:]:
            await again.step(*batch)
        assert_same_tensors(await states_of(again), expected)


@pytest.mark.parametrize(("state", "wait"), [(None, True), ({1: 2}, False), ({"x": "x" * (4 << 20)}, True)], ids=range(3))
async def test_a_good_checkpoint_stays_where_the_new_one_could_not_be_read_back(tmp_path: Path, state: Any, wait: bool) -> None:
    """A bug once replaced it by one that could not be loaded, or that had other content. test_data_state.py has more states."""
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        trainer.data_state = {"position": 17}
        await trainer.save(tmp_path / "c")
        before = bytes_of(tmp_path / "c")
        trainer.data_state = state
        with pytest.raises((TypeError, ValueError), match=r"^data_state") as caught:
            await trainer.save(tmp_path / "c", wait=wait)
        assert "\n" not in str(caught.value)
        await trainer.saved()
        assert bytes_of(tmp_path / "c") == before
        assert (await Trainer.load(engine, tmp_path / "c")).data_state == {"position": 17}


@pytest.mark.filterwarnings("ignore:the model's config asks for dropout")
async def test_a_state_that_the_reader_would_refuse_is_not_saved(tmp_path: Path) -> None:
    """Besides data_state: fields that a user has set, and a configuration that no config.json can express."""
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        await trainer.save(tmp_path / "c")
        trainer.skipped_count = -1
        with pytest.raises(ValueError, match=r"not saved, because its checkpoint could not be read back: .*skipped_count -1"):
            await trainer.save(tmp_path / "c")
        for odd in ({"bos_token_id": 10**200}, {"pdrops": {"n_layer": 0.5}}, {"pdrops": {"other": 0.5}}):
            model = await GPT2.create(engine, replace(trainer.model.config, **odd))
            for save in (model.save_pretrained, Trainer(model).save):
                with pytest.raises(ValueError, match=r"model was not saved, because its config\.json could not be read back"):
                    await save(tmp_path / "c")
        assert (await Trainer.load(engine, tmp_path / "c")).skipped_count == 0
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("wait", [True, False])
async def test_a_save_reports_its_progress_and_ends_when_the_folder_is_there(tmp_path: Path, wait: bool) -> None:
    async with Engine("cpu", host_memory="64MiB") as engine:
        trainer = await trainer_on(engine)
        nbytes = trainer.model.config.states_nbytes
        told: list[tuple[int, int, bool]] = []
        await trainer.save(tmp_path / "c", wait=wait, progress=lambda *said: told.append((*said, (tmp_path / "c").exists())))
        await trainer.saved()
    done, totals = [words[0] for words in told], {words[1] for words in told}
    assert done == sorted(done) and totals == {2 * nbytes} == {done[-1]}
    assert done[-2] < done[-1] and len(set(done)) > 10 and done[0] < nbytes / 2
    assert [there for _, _, there in told] == [False] * (len(told) - 1) + [True]
