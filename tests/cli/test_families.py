"""Commands on folders of LLaMA, Mistral, Qwen2 and Qwen3, with tokenizers in the forms that such models have."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.cli.terminal import printable
from asynctile.layers import LlamaConfig, MistralConfig, Model, Qwen2Config, Qwen3Config, open_tokenizer
from asynctile.layers.architectures import config_from_hf
from asynctile.layers.config import Config
from asynctile.layers.special_tokens import prompt_ids
from tests.cli.conftest import Program
from tests.laws import law
from tests.layers.llama_files import TEXT, byte_level, sentencepiece

SHAPE: dict[str, Any] = {"n_layer": 1, "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4,
                         "num_key_value_heads": 2, "vocab_size": 340, "block_size": 4096}  # fmt: skip
#: By family: its configuration, its tokenizer, and the tokens that end its texts.
FAMILIES: dict[str, tuple[Config, bytes, list[str]]] = {
    "LLaMA": (LlamaConfig(**SHAPE),
              byte_level("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"), ["<|end_of_text|>", "<|eot_id|>"]),
    "Mistral": (MistralConfig(**SHAPE), sentencepiece(), ["</s>"]),
    "Qwen2": (Qwen2Config(**SHAPE, tie_word_embeddings=True), byte_level(None, "<|endoftext|>", "<|im_end|>"), ["<|im_end|>"]),
    "Qwen3": (Qwen3Config(**SHAPE, head_dim=16), byte_level(None, "<|endoftext|>", "<|im_end|>"),
              ["<|endoftext|>", "<|im_end|>"]),
}  # fmt: skip


async def write(folder: Path, family: str) -> None:
    """Write a random model of a family in bfloat16, with its tokenizer, the tokens that end its texts and a chat template."""
    config, tokenizer, ends = FAMILIES[family]
    ids = {token["content"]: token["id"] for token in json.loads(tokenizer)["added_tokens"]}
    async with Engine("cpu") as engine:
        model = await Model.create(engine, config, seed=1)
        model.companions = {
            "tokenizer.json": tokenizer, "chat_template.jinja": b"{{ messages }}",
            "generation_config.json": json.dumps({"eos_token_id": [ids[name] for name in ends]}).encode(),
        }  # fmt: skip
        await model.save_pretrained(folder, dtype="bfloat16")


async def likeliest(folder: Path, prompt: str, count: int) -> str:
    """Return the likeliest text of a model, without the token that ends it."""
    tokenizer, text = open_tokenizer(folder), list[int]()
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    async with Engine("cpu") as engine:
        model = await Model.from_pretrained(engine, folder)
        begin = prompt_ids(tokenizer, prompt)
        async for token in model.generate(begin, max_new_tokens=count, temperature=0):
            if token in ends:
                break
            text.append(token)
    whole = tokenizer.decode([*begin, *(token for token in text if token < tokenizer.vocab_size)])
    return printable(whole.removeprefix(tokenizer.decode(begin)))


@pytest.mark.parametrize("family", ["LLaMA", law("Qwen2"), "Mistral", law("Qwen3")])
def test_a_model_of_a_family_is_planned_trained_measured_and_written_with(
    program: Program, tmp_path: Path, family: str
) -> None:
    model, run, text = tmp_path / "model", tmp_path / "run", tmp_path / "text.txt"
    asyncio.run(write(model, family))
    text.write_text(TEXT)
    words = ("--model", model, "--device", "emulated", "--batch-size", 2, "--seq-len", 24)
    status, out, _ = program("plan", *words)
    assert status == 0 and re.search(rf"parameters +{FAMILIES[family][0].parameter_count:,}", out)
    cap = ("--device-memory", "320KiB")
    status, _, err = program("train", *words, *cap, "--data", text, "--steps", 2, "--out", run)
    assert status == 0, err
    assert program("train", "--resume", "--out", run, "--steps", 3)[0] == 0
    saved = run / "checkpoints" / "step-000003"
    assert (saved / "README.md").read_text().count(f"A {family} of ") == 1
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (saved / name).read_bytes() == (model / name).read_bytes()
    status, out, _ = program("evaluate", run, "--data", text, "--seq-len", 24)
    assert status == 0 and re.search(r"^loss +[3-6]\.\d+ nats", out, re.MULTILINE)
    status, out, _ = program("generate", run, "--prompt", "The tile", "--temperature", 0, "--max-new-tokens", 12)
    assert (status, out) == (0, f"The tile{asyncio.run(likeliest(saved, 'The tile', 12))}\n")


#: config.json as its makers publish it, without what no arithmetic needs, and the number of parameters.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-3.1-8B": ({
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "hidden_act": "silu",
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False, "eos_token_id": [128001, 128008, 128009],
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3",
                         "original_max_position_embeddings": 8192},
    }, 8_030_261_248),
    "Qwen3-8B": ({
        "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "hidden_act": "silu",
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "max_position_embeddings": 40960, "rope_theta": 1000000, "tie_word_embeddings": False, "sliding_window": None,
    }, 8_190_735_360),
    "Qwen3-32B": ({
        "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "hidden_act": "silu",
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "max_position_embeddings": 40960, "rope_theta": 1000000, "tie_word_embeddings": False, "use_sliding_window": False,
    }, 32_762_123_264),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shape_of_a_published_model_is_read_from_its_config(name: str) -> None:
    values, count = PUBLISHED[name]
    config = config_from_hf(values)
    assert config.parameter_count == count
    assert config_from_hf(config.to_hf()) == config


@pytest.mark.laws
@pytest.mark.parametrize("machine", ["rtx-4090", "h200"])
def test_a_published_model_is_planned_from_its_config_alone(program: Program, tmp_path: Path, machine: str) -> None:
    values, count = PUBLISHED["Llama-3.1-8B"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    words = ("--machine", machine, "--precision", "bf16", "--batch-size", 8)
    status, out, _ = program("plan", "--model", tmp_path / "config.json", *words)
    assert status == 0 and re.search(r"^verdict +fits", out) and f"{count:,}" in out
