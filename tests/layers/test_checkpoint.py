"""Reading a checkpoint: flipped bits, later formats, edited settings, other folders; and it resumes bit for bit.

test_trainer.py tests files that are cut or missing, test_saving.py tests saving.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import CheckpointError, Engine
from asynctile.layers import GPT2, AdamW, Trainer
from asynctile.share import runtime_of
from tests.laws import covering
from tests.layers.saving import BATCHES, DEVICES, FILES, bytes_of, states_of, trainer_on
from tests.layers.training import assert_same_tensors, floor_of

DEEP: list[Any] = []
for _ in range(100):
    DEEP = [DEEP]


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


@pytest.mark.parametrize("where", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("name", FILES)
async def test_a_flipped_bit_is_found(copied: Path, name: str, where: float) -> None:
    content = bytearray((copied / name).read_bytes())
    content[int(where * len(content))] ^= 1
    (copied / name).write_bytes(content)
    async with Engine("cpu") as engine:
        with pytest.raises(CheckpointError, match=str(copied)) as caught:
            await Trainer.load(engine, copied)
        # A flipped bit of the checksums may accuse any file.
        assert name in str(caught.value) or name == "checksums.json"
        assert engine.statistics().operations == 0
        if name == "model.safetensors":
            with pytest.raises(CheckpointError, match=name):
                await GPT2.from_pretrained(engine, copied)


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


def rewrite(folder: Path, **changes: Any) -> None:
    state = json.loads((folder / "trainer.json").read_text())
    (folder / "trainer.json").write_text(json.dumps(state | changes))


async def test_a_later_format_is_named_before_anything_else(copied: Path) -> None:
    rewrite(copied, format=99)
    async with Engine("cpu") as engine:
        with pytest.raises(CheckpointError, match="format 99, but this version of asynctile reads formats up to 4"):
            await Trainer.load(engine, copied)


@pytest.mark.parametrize(
    "change",
    [{"surroundings": []}, {"data_state": 3}, {"recompute": "no"}, {"tile": "x"}, {"optimizer": None}, {"clip_norm": "x"},
     {"skipped_count": True}, {"format": 1.5}],
    ids=str,
)  # fmt: skip
async def test_edited_settings_are_named(copied: Path, change: dict[str, Any]) -> None:
    rewrite(copied, **change)
    (copied / "checksums.json").unlink()
    async with Engine("cpu") as engine:
        with pytest.raises(CheckpointError, match=r"trainer\.json") as caught:
            await Trainer.load(engine, copied)
        assert "\n" not in str(caught.value)


async def test_a_model_without_its_training_says_how_to_load_it(copied: Path) -> None:
    async with Engine("cpu") as engine:
        (copied / "trainer.json").unlink()
        with pytest.raises(CheckpointError, match=r"without training state.*GPT2\.from_pretrained"):
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


@pytest.mark.parametrize("recompute", ["auto", True, False])
async def test_the_requested_recompute_is_kept(recompute: bool | str, tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine, recompute=recompute)
        await trainer.save(tmp_path / "c")
        assert (await Trainer.load(engine, tmp_path / "c")).recompute == trainer.recompute == recompute


@pytest.mark.parametrize("recompute", [True, False])
async def test_a_checkpoint_older_than_the_choice_of_recompute_goes_on_as_it_did(copied: Path, recompute: bool) -> None:
    rewrite(copied, format=1, recompute=recompute)
    (copied / "checksums.json").unlink()
    async with Engine("cpu") as engine:
        assert (await Trainer.load(engine, copied)).recompute is recompute


async def test_the_decay_of_the_rate_is_kept_and_is_a_cosine_in_older_checkpoints(copied: Path, tmp_path: Path) -> None:
    optimizer = AdamW(lr=0.5, decay_steps=9, decay="linear")
    async with Engine("cpu") as engine:
        trainer = Trainer((await trainer_on(engine)).model, optimizer)
        await trainer.save(tmp_path / "c")
        assert (await Trainer.load(engine, tmp_path / "c")).optimizer == optimizer
        old = json.loads((copied / "trainer.json").read_text())["optimizer"]
        assert old.pop("decay") == "cosine"
        rewrite(copied, format=2, optimizer=old)
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
        assert (again.step_count, again.skipped_count) == (2, 1)
        for batch in BATCHES[3:]:
            await again.step(*batch)
        assert_same_tensors(await states_of(again), expected)


@pytest.mark.parametrize("state", [{"n": 10**400}, {"deep": DEEP}, {"x": "x" * (4 << 20)}], ids=["long", "deep", "large"])
async def test_a_state_that_could_not_be_read_back_is_not_saved(tmp_path: Path, state: dict[str, Any]) -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        trainer.data_state = state
        with pytest.raises(ValueError, match="data_state could not be read back from a checkpoint"):
            await trainer.save(tmp_path / "checkpoint")
        assert not (tmp_path / "checkpoint").exists()
        trainer.data_state = {"nan": float("nan"), "state": 2**128}
        await trainer.save(tmp_path / "checkpoint")
        assert (await Trainer.load(engine, tmp_path / "checkpoint")).data_state["state"] == 2**128


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("state", [None, 5, "s", [1], {1: 2}, {"at": (1, 2)}], ids=repr)
async def test_a_good_checkpoint_stays_where_the_new_one_could_not_be_read_back(tmp_path: Path, state: Any, wait: bool) -> None:
    """A bug once replaced it by one that could not be loaded, or that had other content."""
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
