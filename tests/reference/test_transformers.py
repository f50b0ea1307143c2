"""Exchange with transformers: its GPT-2 loaded here, ours loaded there, and the existing variants of files.

Long because a process that has imported transformers, which is slow, tests everything in both directions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tokenizers  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

from asynctile import CheckpointError, Engine  # noqa: E402
from asynctile.cli import main  # noqa: E402
from asynctile.layers import GPT2, GPT2Config, Trainer  # noqa: E402
from asynctile.layers.tokenizer import ByteTokenizer, train_bpe  # noqa: E402
from tests.layers.shapes import Shape  # noqa: E402
from tests.layers.training import assert_same_tensors, batches_of  # noqa: E402
from tests.reference.bounds import (  # noqa: E402
    GRADIENT,
    LOGITS,
    OPTIMIZER,
    STEPS,
    TRAINED,
    check_gradients,
    check_trained,
    distance,
)  # fmt: skip

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("default")]

CONFIG = GPT2Config(n_layer=2, n_head=3, n_embd=72, block_size=48, vocab_size=150)
SHAPE = Shape(CONFIG, 40, 2, 45)
Tensors = dict[str, Any]


def theirs_of(**more: Any) -> Any:
    """Return a randomly initialized GPT2LMHeadModel without dropout."""
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        n_layer=CONFIG.n_layer, n_head=CONFIG.n_head, n_embd=CONFIG.n_embd, n_positions=CONFIG.block_size,
        vocab_size=CONFIG.vocab_size, bos_token_id=0, eos_token_id=0,
        **{"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0} | more,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def state_of(model: Any) -> Tensors:
    return {name: value.detach().float().numpy().copy() for name, value in model.named_parameters()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    theirs_of().save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def loss_of(model: Any, tokens: Any, targets: Any) -> Any:
    logits = model(torch.from_numpy(tokens.astype(np.int64))).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets.astype(np.int64)).flatten())


async def loaded(path: Path) -> Tensors:
    async with Engine("cpu") as engine:
        return await (await GPT2.from_pretrained(engine, path)).state_dict()


async def test_logits_gradients_and_50_steps_of_a_loaded_model_agree(folder: Path) -> None:
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder)
    tokens, targets = SHAPE.batch_of_tokens()
    async with Engine("emulated", device_memory=CONFIG.states_nbytes // 4) as engine:
        model = await GPT2.from_pretrained(engine, folder, tile=SHAPE.tile)
        assert model.last_checkpoint == str(folder)
        with torch.no_grad():
            logits = theirs(torch.from_numpy(tokens)).logits.numpy()
        assert distance(await model.logits(tokens), logits) < LOGITS
        trainer = Trainer(model, OPTIMIZER)
        loss_of(theirs, tokens, targets).backward()
        expected = {name: value.grad.numpy() for name, value in theirs.named_parameters()}
        check_gradients(await trainer.gradients(tokens, targets), expected, GRADIENT)
        matrices = [value for value in theirs.parameters() if value.ndim == 2]
        vectors = [value for value in theirs.parameters() if value.ndim != 2]
        adamw = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": OPTIMIZER.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=OPTIMIZER.lr, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps)  # fmt: skip
        for tokens, targets in batches_of(SHAPE, STEPS):
            adamw.zero_grad()
            loss = loss_of(theirs, tokens, targets)
            loss.backward()
            adamw.step()
            assert (await trainer.step(tokens, targets)).loss == pytest.approx(loss.item(), rel=1e-4)
        check_trained(await model.state_dict(), state_of(theirs), TRAINED)


async def test_transformers_loads_a_saved_model(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, CONFIG, seed=2, tile=SHAPE.tile)
        await Trainer(model, OPTIMIZER).step(*SHAPE.batch_of_tokens())
        await model.save_pretrained(tmp_path / "ours")
        state = await model.state_dict()
        logits = await model.logits(SHAPE.batch_of_tokens()[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        theirs, report = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same_tensors(state, state_of(theirs))
    assert theirs.lm_head.weight is theirs.transformer.wte.weight
    with torch.no_grad():
        expected = theirs(torch.from_numpy(SHAPE.batch_of_tokens()[0])).logits.numpy()
    assert distance(logits, expected) < LOGITS


async def test_a_round_trip_changes_no_bit(folder: Path, tmp_path: Path) -> None:
    expected = state_of(transformers.GPT2LMHeadModel.from_pretrained(folder))
    async with Engine("emulated", device_memory="100KiB") as engine:
        model = await GPT2.from_pretrained(engine, folder, tile=24)
        assert_same_tensors(await model.state_dict(), expected)
        await model.save_pretrained(tmp_path / "back")
    assert_same_tensors(await loaded(tmp_path / "back"), expected)
    assert_same_tensors(state_of(transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "back")), expected)


def rewrite(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors", {"format": "pt"})


async def test_keys_without_the_prefix_and_with_masks_are_read(folder: Path) -> None:
    expected = await loaded(folder)

    def old(tensors: Tensors) -> Tensors:
        masks = {f"h.{n}.attn.bias": np.tril(np.ones((1, 1, 48, 48), bool)) for n in range(CONFIG.n_layer)}
        masks |= {f"h.{n}.attn.masked_bias": np.float32([-1e4]) for n in range(CONFIG.n_layer)}
        return {name.removeprefix("transformer."): value for name, value in tensors.items()} | masks

    rewrite(folder, old)
    assert_same_tensors(await loaded(folder), expected)


async def test_a_base_model_of_transformers_is_read(tmp_path: Path) -> None:
    theirs = theirs_of()
    theirs.transformer.save_pretrained(tmp_path / "base")
    assert_same_tensors(await loaded(tmp_path / "base"), state_of(theirs))


async def test_shards_are_read(tmp_path: Path) -> None:
    theirs = theirs_of()
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").exists()
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    assert_same_tensors(await loaded(tmp_path / "shards"), state_of(theirs))
    next((tmp_path / "shards").glob("model-*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match="model-0000"):
        await loaded(tmp_path / "shards")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
async def test_half_precision_files_are_read_exactly(dtype: str, tmp_path: Path) -> None:
    theirs = theirs_of().to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path / "half")
    assert_same_tensors(await loaded(tmp_path / "half"), state_of(theirs))


async def test_a_stored_head_is_read_if_it_is_tied(folder: Path) -> None:
    expected = await loaded(folder)
    rewrite(folder, lambda tensors: tensors | {"lm_head.weight": tensors["transformer.wte.weight"].copy()})
    assert_same_tensors(await loaded(folder), expected)


async def test_an_untied_head_is_refused(folder: Path, tmp_path: Path) -> None:
    rewrite(folder, lambda tensors: tensors | {"lm_head.weight": tensors["transformer.wte.weight"] + 1})
    with pytest.raises(CheckpointError, match=r"lm_head.weight differs.*tied"):
        await loaded(folder)
    theirs_of(tie_word_embeddings=False).save_pretrained(tmp_path / "untied")
    with pytest.raises((CheckpointError, ValueError), match=r"tie_word_embeddings False.*only True"):
        await loaded(tmp_path / "untied")


@pytest.mark.parametrize("change", [{"activation_function": "relu"}, {"scale_attn_by_inverse_layer_idx": True}])
async def test_a_variant_with_other_arithmetic_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    theirs_of(**change).save_pretrained(tmp_path / "variant")
    (name,) = change
    with pytest.raises(ValueError, match=f"{name}.*only"):
        await loaded(tmp_path / "variant")


async def test_dropout_is_kept_for_saving(tmp_path: Path) -> None:
    theirs_of(attn_pdrop=0.1, resid_pdrop=0.25).save_pretrained(tmp_path / "drops")
    async with Engine("cpu") as engine:
        model = await GPT2.from_pretrained(engine, tmp_path / "drops")
        await model.save_pretrained(tmp_path / "back")
    saved = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (saved["attn_pdrop"], saved["resid_pdrop"], saved["embd_pdrop"]) == (0.1, 0.25, 0.0)


@pytest.mark.parametrize("damage", ["a tensor missing", "another shape", "another width in config.json"])
async def test_files_that_do_not_fit_are_refused(damage: str, folder: Path) -> None:
    name = "transformer.h.1.mlp.c_fc.weight"
    if damage == "a tensor missing":
        rewrite(folder, lambda tensors: {key: value for key, value in tensors.items() if key != name})
    elif damage == "another shape":
        rewrite(folder, lambda tensors: tensors | {name: np.ascontiguousarray(tensors[name].T)})
    else:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"n_embd": 75}))
    with pytest.raises(CheckpointError, match="transformer.wte.weight" if "width" in damage else re.escape(name)):
        await loaded(folder)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Yield a list of transformers' warnings, by Python's warnings or its own log."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
        found.extend(str(item.message) for item in caught)
    logger.removeHandler(handler)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {n}: the tile moved from {n * 7 % 11} to {n * 5 % 13}; é € 🙂\n" for n in range(400)))
    return path


def trained(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], **changes: Any) -> Path:
    """Return the checkpoint that a small run names at its end. changes: of the shape; `tokenizer` is that of the run."""
    shape, run = tmp_path / "shape.json", tmp_path / "run"
    words = ["--tokenizer", changes.pop("tokenizer")] if "tokenizer" in changes else []
    values = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32, "vocab_size": 256}
    shape.write_text(json.dumps(values | changes))
    assert main(["train", "--data", str(text), "--model", str(shape), "--device", "cpu", "--batch-size", "4", "--steps", "5",
                 "--lr", "3e-3", "--out", str(run), *map(str, words)]) == 0  # fmt: skip
    named = re.search(r"transformers can load (\S+) as it is", capsys.readouterr().out)
    assert named is not None
    return Path(named[1])


async def logits_of(folder: Path, tokens: Any) -> Any:
    async with Engine("cpu") as engine:
        return await (await GPT2.from_pretrained(engine, folder)).logits(tokens)


async def check_model(folder: Path, vocab_size: int) -> Any:
    """Return transformers' model of that folder, after checking that its logits are ours."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokens = np.random.default_rng(1).integers(0, vocab_size, (3, 32))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)).logits.numpy()
    logits = await logits_of(folder, tokens)
    assert distance(logits, expected) < LOGITS
    assert np.abs(logits - expected).max() < 1e-5
    return theirs


def test_a_checkpoint_of_bytes_opens_unchanged(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], said: list[str]
) -> None:
    folder = trained(tmp_path, text, capsys)
    theirs = asyncio.run(check_model(folder, 256))
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (None, None)
    tokenizer, ours = transformers.AutoTokenizer.from_pretrained(folder), ByteTokenizer()
    assert (len(tokenizer), tokenizer.model_max_length, tokenizer.special_tokens_map) == (256, 32, {})
    random = np.random.default_rng(1)
    for _ in range(300):
        # Any character except halves of surrogate pairs, which Rust strings cannot hold; short enough that no warning comes.
        codes = random.integers(0, random.choice([0x80, 0x800, 0xD800]), random.integers(0, 10))
        words = "".join(map(chr, codes)) + str(random.choice(["", " ", "<|endoftext|>", " 's\n\n  a", "\U0001f642 \u0301"]))
        ids = tokenizer(words[:8])["input_ids"]
        assert ids == ours.encode(words[:8]).tolist()
        assert tokenizer.decode(ids) == words[:8]
        raw = random.integers(0, 256, 40)  # mostly not UTF-8
        assert tokenizer.decode(raw) == ours.decode(raw)
    generate = transformers.pipeline("text-generation", model=str(folder))
    for more in ({}, {"max_new_tokens": 7}, {"do_sample": False}):
        assert generate("line 7", **more)[0]["generated_text"].startswith("line 7")
    assert said == []


def test_a_checkpoint_with_its_own_tokenizer_ends_its_texts(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], said: list[str]
) -> None:
    raw = tokenizers.Tokenizer.from_buffer(train_bpe([text.read_text()], 300).to_json())
    raw.add_special_tokens(["<|endoftext|>"])
    raw.save(str(tmp_path / "tokenizer.json"))
    end = raw.token_to_id("<|endoftext|>")
    changes = {"tokenizer": tmp_path / "tokenizer.json", "vocab_size": end + 1, "bos_token_id": end, "eos_token_id": end}
    folder = trained(tmp_path, text, capsys, **changes)
    theirs = asyncio.run(check_model(folder, end + 1))
    assert (theirs.config.eos_token_id, theirs.generation_config.eos_token_id) == (end, end)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id, len(tokenizer)) == (end, end, end + 1)
    for line in text.read_text().splitlines():
        assert tokenizer(line[:30])["input_ids"] == raw.encode(line[:30]).ids
        assert tokenizer.decode(raw.encode(line).ids) == line
    generate = transformers.pipeline("text-generation", model=str(folder))
    assert generate("line 7", max_new_tokens=5)[0]["generated_text"].startswith("line 7")
    assert generate("line 7")[0]["generated_text"].startswith("line 7")
    assert said == []


async def test_a_folder_of_transformers_comes_back_with_its_tokenizer_and_its_settings(folder: Path, tmp_path: Path) -> None:
    vocab = json.loads(train_bpe(["a tile moved"], 260).to_json())["model"]
    merges = [tuple(pair) for pair in vocab["merges"]]
    names = {**vocab["vocab"], "<|endoftext|>": len(vocab["vocab"])}
    theirs = transformers.GPT2Tokenizer(vocab=names, merges=merges, model_max_length=48)
    theirs.save_pretrained(folder)
    settings = transformers.GenerationConfig(do_sample=True, top_p=0.9, max_length=40, bos_token_id=0, eos_token_id=[0, 3])
    settings.save_pretrained(folder)
    async with Engine("cpu") as engine:
        await (await GPT2.from_pretrained(engine, folder)).save_pretrained(tmp_path / "ours")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(again) is type(transformers.AutoTokenizer.from_pretrained(folder))
    assert again.get_vocab() == theirs.get_vocab() and again.special_tokens_map == theirs.special_tokens_map
    assert again("a tile <|endoftext|> moved")["input_ids"] == theirs("a tile <|endoftext|> moved")["input_ids"]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert model.generation_config.to_diff_dict() == settings.to_diff_dict()
    assert (model.config.bos_token_id, model.config.eos_token_id) == (0, 0)
