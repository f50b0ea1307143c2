"""Companions of the weights: kept unchanged through every save, bounded, checked by checksum; token ids if there are none.

tests/reference/test_transformers.py checks that transformers opens these folders, tests/cli/test_companions.py the files of a
run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from asynctile import CheckpointError, Engine
from asynctile.layers import GPT2, GPT2Config, Trainer
from asynctile.layers.companions import LIMITS
from asynctile.layers.special_tokens import of_tokenizer, token_ids
from asynctile.layers.tokenizer import ByteTokenizer, HuggingFaceTokenizer, parse_tokenizer, train_bpe
from tests.laws import covering
from tests.layers.training import SMALL

CONFIG = SMALL.config
#: No program could read these, so no code here may look into them either.
FILES = {name: b"\xff\x00 " + name.encode() for name in LIMITS}


async def saved(path: Path, config: GPT2Config = CONFIG, files: dict[str, bytes] | None = None) -> Path:
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, config, tile=SMALL.tile)
        if files:
            model.companions = files
        await model.save_pretrained(path)
    return path


def beside(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in LIMITS if (path / name).exists()}


async def test_a_loaded_models_companions_are_saved_again_byte_for_byte(tmp_path: Path) -> None:
    await saved(tmp_path / "a", files=FILES)
    (tmp_path / "a" / "NOTES.md").write_text("not a companion")
    async with Engine("cpu") as engine:
        model = await GPT2.from_pretrained(engine, tmp_path / "a")
        assert model.companions == FILES
        await model.save_pretrained(tmp_path / "b")
        await Trainer(model).save(tmp_path / "c")
        trainer = await Trainer.load(engine, tmp_path / "c")
        await trainer.save(tmp_path / "d", wait=False)
        await trainer.saved()
    for name in "bcd":
        assert beside(tmp_path / name) == FILES
        assert not (tmp_path / name / "NOTES.md").exists()
    assert json.loads((tmp_path / "c" / "checksums.json").read_text())["files"].keys() >= FILES.keys()


@pytest.mark.parametrize(("block_size", "new"), [(1, 1), (24, 12), (510, 255), (512, None), (1024, None)])
async def test_a_model_without_companions_writes_its_token_ids_and_a_length_that_fits(
    tmp_path: Path, block_size: int, new: int | None
) -> None:
    config = GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=9, block_size=block_size, eos_token_id=[3, 8], bos_token_id=3)
    found = beside(await saved(tmp_path / "a", config))
    assert list(found) == ["generation_config.json"]
    expected: dict[str, Any] = {"bos_token_id": 3, "eos_token_id": [3, 8], "pad_token_id": None}
    assert json.loads(found["generation_config.json"]) == expected | ({} if new is None else {"max_new_tokens": new})
    async with Engine("cpu") as engine:
        assert (await GPT2.from_pretrained(engine, tmp_path / "a")).config.to_hf() == config.to_hf()


async def test_a_checkpoint_older_than_companions_loads(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        await Trainer(await GPT2.create(engine, CONFIG, tile=SMALL.tile)).save(tmp_path / "a")
        (tmp_path / "a" / "generation_config.json").unlink()
        record = json.loads((tmp_path / "a" / "checksums.json").read_text())
        del record["files"]["generation_config.json"], record["record"]
        (tmp_path / "a" / "checksums.json").write_text(json.dumps(record))
        assert (await Trainer.load(engine, tmp_path / "a")).model.companions == {}
        # A tokenizer that a user added by hand since then changes nothing that was saved.
        (tmp_path / "a" / "tokenizer.json").write_bytes(b"{}")
        assert (await Trainer.load(engine, tmp_path / "a")).model.companions == {"tokenizer.json": b"{}"}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[1] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"), covering(["tokenizer.json", "generation_config.json"], {"flipped": flip, "missing": Path.unlink})
)
async def test_a_damaged_companion_of_a_checkpoint_is_named(tmp_path: Path, name: str, damage: Callable[[Path], Any]) -> None:
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, CONFIG, tile=SMALL.tile)
        model.companions = FILES
        await Trainer(model).save(tmp_path / "a")
        damage(tmp_path / "a" / name)
        for load in (GPT2.from_pretrained, Trainer.load):
            with pytest.raises(CheckpointError, match=name) as caught:
                await load(engine, tmp_path / "a")
            assert "\n" not in str(caught.value)


async def test_an_edited_card_is_no_damage_and_goes_along(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, CONFIG, tile=SMALL.tile)
        model.companions = FILES
        await Trainer(model).save(tmp_path / "a")
        (tmp_path / "a" / "README.md").write_bytes(b"# mine")
        assert (await GPT2.from_pretrained(engine, tmp_path / "a")).companions["README.md"] == b"# mine"
        trainer = await Trainer.load(engine, tmp_path / "a")
        await trainer.save(tmp_path / "b")
    assert beside(tmp_path / "b") == FILES | {"README.md": b"# mine"}


async def test_a_save_beside_training_has_the_companions_of_the_time_of_its_request(tmp_path: Path) -> None:
    """The same holds for the weights. A later card would describe later steps."""
    async with Engine("cpu") as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, tile=SMALL.tile))
        trainer.model.companions = FILES
        await trainer.save(tmp_path / "a", wait=False)
        assert trainer.saving
        trainer.model.companions = FILES | {"README.md": b"later"}
        await trainer.saved()
        await trainer.save(tmp_path / "b", wait=False)
        await trainer.saved()
    assert beside(tmp_path / "a") == FILES
    assert beside(tmp_path / "b")["README.md"] == b"later"


async def test_links_in_a_models_folder_are_read_and_saved_as_files(tmp_path: Path) -> None:
    """Hugging Face's cache consists of such links."""
    await saved(tmp_path / "a")
    (tmp_path / "blob").write_bytes(b"vocabulary")
    (tmp_path / "a" / "vocab.json").symlink_to(tmp_path / "blob")
    (tmp_path / "a" / "merges.txt").symlink_to(tmp_path / "nowhere")
    async with Engine("cpu") as engine:
        model = await GPT2.from_pretrained(engine, tmp_path / "a")
        await model.save_pretrained(tmp_path / "a")
    assert not (tmp_path / "a" / "vocab.json").is_symlink()
    assert beside(tmp_path / "a").keys() == {"generation_config.json", "vocab.json"}
    assert (tmp_path / "blob").read_bytes() == (tmp_path / "a" / "vocab.json").read_bytes() == b"vocabulary"
    assert not (tmp_path / "nowhere").exists()


def long(path: Path) -> None:
    path.touch()
    os.truncate(path, (128 << 20) + 1)


ODD: dict[str, Callable[[Path], Any]] = {
    "long": long, "a pipe": os.mkfifo, "a folder": Path.mkdir, "a device": lambda path: path.symlink_to("/dev/zero"),
}  # fmt: skip


@pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())
async def test_a_special_or_too_long_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    await saved(tmp_path / "a")
    make(tmp_path / "a" / "tokenizer.json")
    async with Engine("cpu") as engine:
        with pytest.raises(CheckpointError, match=r"cannot read .*tokenizer\.json") as caught:
            await GPT2.from_pretrained(engine, tmp_path / "a")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("files", "kind", "sentence"), [
    ({"../x": b""}, ValueError, r"companions contain '\.\./x', expected file names among generation_config.json, tok"),
    ({"config.json": b""}, ValueError, "companions contain 'config.json'"),
    ({"merges.txt": "a b"}, TypeError, "companion merges.txt has type str, expected bytes"),
    ({"special_tokens_map.json": bytes((4 << 20) + 1)}, ValueError, "has 4194305 bytes, expected at most 4194304"),
])  # fmt: skip
async def test_invalid_companions_are_refused_when_they_are_set(
    files: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, CONFIG, tile=SMALL.tile)
        model.companions = {"merges.txt": b"a b"}
        with pytest.raises(kind, match=sentence):
            model.companions = files
        assert model.companions == {"merges.txt": b"a b"}
        with pytest.raises(TypeError):
            model.companions["merges.txt"] = b""  # type: ignore[index]


def test_a_tokenizers_files_name_only_tokens_that_it_has() -> None:
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 24, "clean_up_tokenization_spaces": False}
    trained = train_bpe(["a b a b"], 258)
    for tokenizer in (ByteTokenizer(), trained):
        files = of_tokenizer(tokenizer, 24)
        assert json.loads(files["tokenizer_config.json"]) == plain
        assert parse_tokenizer(files["tokenizer.json"], "it").fingerprint == tokenizer.fingerprint
        assert token_ids(tokenizer) == {"bos_token_id": None, "eos_token_id": None}
    raw = tokenizers.Tokenizer.from_buffer(trained.to_json())
    raw.add_tokens(["<s>"])  # ordinary text, as far as this tokenizer knows
    raw.add_special_tokens(["</s>", "<unk>"])
    tokenizer = HuggingFaceTokenizer(raw)
    named = plain | {"eos_token": "</s>", "unk_token": "<unk>"}
    assert json.loads(of_tokenizer(tokenizer, 24)["tokenizer_config.json"]) == named
    assert token_ids(tokenizer) == {"bos_token_id": None, "eos_token_id": raw.token_to_id("</s>")}
