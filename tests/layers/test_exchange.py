"""A folder that cannot be a model is refused by a sentence that names the file, in time and memory of its size."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from asynctile.errors import CheckpointError
from asynctile.layers import GPT2Config
from asynctile.layers.architectures import config_from_hf
from asynctile.layers.exchange import Pretrained
from asynctile.layers.layout import shapes
from asynctile.storage.checksums import CHECKSUMS, checksum, checksum_record

CONFIG = GPT2Config(n_layer=1, n_head=1, n_embd=4, block_size=3, vocab_size=5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_hf()))
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes(CONFIG)}
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def header(folder: Path, table: Any, data: int = 0) -> None:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))


Damage = Callable[[Path], object]


def config(**changes: Any) -> Damage:
    return lambda folder: (folder / "config.json").write_text(json.dumps(CONFIG.to_hf() | changes))


def text(name: str, content: str) -> Damage:
    return lambda folder: (folder / name).write_text(content)


def sparse(name: str) -> Damage:
    return lambda folder: os.truncate(folder / name, 1 << 40)


def index(table: str | Callable[[], Any]) -> Damage:
    def put(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(table if isinstance(table, str) else json.dumps(table()))

    return put


def pipe(name: str) -> Damage:
    def put(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return put


def device(name: str) -> Damage:
    def put(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to("/dev/zero")

    return put


def weight_map(count: int, ending: str = "") -> Callable[[], Any]:
    """Return a function that makes the index of so many files."""
    return lambda: {"weight_map": {f"{n}": f"{n}{ending}" for n in range(count)}}


def many() -> dict[str, Any]:
    """Return the header of 20,000 tensors. Cases call it, so that collecting them takes no time."""
    return {f"transformer.h.{n}.x": {"dtype": "F32", "shape": [], "data_offsets": [4 * n, 4 * n + 4]} for n in range(20_000)}


def instead(name: str) -> Damage:
    """Put a file of another format into the place of the weights."""
    return lambda folder: (folder / "model.safetensors").rename(folder / name)


def tensor(name: str, array: Any) -> Damage:
    """Add a tensor to the weights, or replace one."""

    def put(folder: Path) -> None:
        tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes(CONFIG)}
        save_file(tensors | {name: array}, folder / "model.safetensors")

    return put


C_FC = "transformer.h.0.mlp.c_fc"
DEEP = "[" * 100_000


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("damage", "sentence"), [
    (config(n_layer=10**9), "has no tensor transformer.h.1.ln_1.weight"),
    (config(vocab_size=2**31 - 1), "its config.json requires (2147483647, 4)"),
    (config(vocab_size=10**12), "config.json: vocab_size is 1000000000000, expected"),
    (config(n_positions=10**9), "its config.json requires (1000000000, 4)"),
    (config(n_embd=10**9, n_head=1), "its config.json requires (5, 1000000000)"),
    (config(n_embd=10**99), "config.json: n_embd is 1000000"),
    (config(n_embd=10**400), "config.json is damaged: its"),
    (config(layer_norm_epsilon=10**400), "config.json is damaged: its"),
    (config(layer_norm_epsilon=10**99), "config.json: layer_norm_epsilon is 100000"),
    (config(initializer_range=float("nan")), "config.json is damaged: its"),
    (config(initializer_range=True), "config.json: initializer_range is True"),
    (config(n_inner="x" * 10**5), "config.json: n_inner is 'xxx"),
    (config(model_type=["x"] * 10**5), "config.json: config.json says model_type ['x', "),
    (config(activation_function="\ud800\x1b[31m"), r"config.json: config.json says activation_function '\ud800\x1b[31m'"),
    (config(quantization_config={"quant_method": "gptq", "bits": 4}),
     "config.json: config.json has quantization_config 'gptq': quantised weights are not computed here; load the weights"),
    (config(quantization_config={"load_in_8bit": True}), "config.json has quantization_config: quantised weights"),
    (config(num_experts=128), "config.json says num_experts 128: a mixture of experts is not computed here; load a dense"),
    (config(num_local_experts=8, model_type="mixtral"), "config.json says num_local_experts 8: a mixture of experts"),
    (config(vision_config={}, n_routed_experts=64), "config.json says n_routed_experts 64: a mixture"),
    (config(vision_config={"depth": 32}, model_type="qwen2_vl"), "config.json has vision_config: a model of pictures"),
    (config(text_config={"n_layer": 2}), "config.json has text_config: a model of more than text"),
    (instead("model-Q4_K_M.gguf"), "but model-Q4_K_M.gguf: GGUF, which is mostly quantised; load the weights"),
    (instead("pytorch_model-00001-of-00002.bin"), "pickled weights, which can run code; open them with transformers"),
    (instead("consolidated.00.pth"), "weights in their makers' own layout; load the folder"),
    (instead("adapter_config.json"), "an adapter without its base model; merge it"),
    (tensor(f"{C_FC}.qweight", np.zeros((1, 2), np.int32)), f"it holds {C_FC}.qweight, a tensor of GPTQ or AWQ: quantised"),
    (tensor(f"{C_FC}.weight.absmax", np.zeros(2, np.float32)), "weight.absmax, a tensor of bitsandbytes: quantised weights"),
    (tensor(f"{C_FC}.weight", np.zeros((4, 16), np.uint8)), "c_fc.weight holds U8, expected one of F64, F32, F16, BF16; load"),
    (tensor("transformer.h.0.attn.q_norm.weight", np.zeros(4, np.float32)),
     "holds transformer.h.0.attn.q_norm.weight, which its config.json does not describe; load the config.json and the weights"),
    (tensor("h.1.ln_1.weight", np.zeros(4, np.float32)), "holds h.1.ln_1.weight, which its config.json does not describe"),
    (text("config.json", DEEP), "config.json is damaged: its 100000 bytes are not JSON (it is nested deeper"),
    (text("config.json", '{"a":' * 100_000), "config.json is damaged: its 500000 bytes are not JSON (it is nested deeper"),
    (text("config.json", "[" + "[]," * 3_000_000), "cannot read"),
    (text(CHECKSUMS, DEEP), "checksums.json is damaged"),
    (index(DEEP), "index.json is damaged"),
    (index(lambda: {"weight_map": {"a": "b\0c"}}), "index.json is damaged"),
    (index(weight_map(300_000, ".safetensors")), "index.json: it has 8.94 MiB, expected"),
    (index(weight_map(30_000)), "names 30000 files for a model of at most 34 tensors"),
    (lambda folder: header(folder, many(), 80_000), "bytes, expected at most 1065984 for a model of 34 tensors"),
    (lambda folder: header(folder, DEEP.encode()), "100000 bytes of header are not JSON (it is nested"),
    (lambda folder: header(folder, {"a": {"dtype": "F32", "shape": [2] * 10**5, "data_offsets": [0, 8]}}, 8), "tensor 'a' is"),
    *((damage(name), f"{name}: {why}") for name in ("config.json", "model.safetensors")
      for damage, why in [(pipe, "it is a pipe"), (device, "it is a device")]),
    (sparse("config.json"), "config.json: it has 1.00 TiB, expected at most 4.00 MiB"),
    (sparse("model.safetensors"), "model.safetensors is longer than its header says"),
], ids=lambda value: value if isinstance(value, str) else "damage")  # fmt: skip
def test_damage_is_one_sentence_that_names_the_file(folder: Path, damage: Damage, sentence: str) -> None:
    damage(folder)
    tracemalloc.start()
    try:
        with pytest.raises((CheckpointError, ValueError)) as caught:
            Pretrained(folder)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    assert sentence in str(caught.value)
    assert str(folder) in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("name", "sentence"), [
    ("model.safetensors", "longer than its header says"),
    ("config.json", "config.json: it has 1.00 TiB, expected at most 4.00 MiB"),
])  # fmt: skip
def test_a_long_file_is_not_read_only_to_compare_its_checksum(folder: Path, name: str, sentence: str) -> None:
    sums = {name: checksum(folder / name) for name in ("config.json", "model.safetensors")}
    (folder / CHECKSUMS).write_text(json.dumps(checksum_record(sums)))
    Pretrained(folder).__exit__(None, None, None)
    os.truncate(folder / name, 1 << 40)
    with pytest.raises(CheckpointError, match=sentence):
        Pretrained(folder)


LLAMA = {"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 9,
         "intermediate_size": 8, "max_position_embeddings": 64}  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"model_type": "gemma2"}, "says model_type 'gemma2'; only 'gpt2', 'llama', 'mistral', 'qwen2', 'qwen3' can be loaded"),
    ({"model_type": "mixtral", "num_local_experts": 8}, "num_local_experts 8: a mixture of experts is not computed here"),
    ({"model_type": "qwen3_moe", "num_experts": 128}, "num_experts 128: a mixture of experts is not computed here; load"),
    ({"model_type": "qwen3", "quantization_config": {"quant_method": "awq"}}, "has quantization_config 'awq': quantised"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling has rope_type 'yarn'; only 'default' and 'llama3'"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling has rope_type 'linear'; only 'default' and 'llama3'"),
    ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "rope_type 'dynamic'; only 'default' and 'llama3' are"),
    ({"model_type": "mistral", "sliding_window": 32}, "sliding_window"),
    ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32}, "sliding_window"),
    ({"hidden_act": "gelu"}, "config.json says hidden_act 'gelu'; only 'silu' is supported, load a model without this variant"),
    ({"head_dim": 7}, "head_dim is 7, expected an even number"),
    ({"num_key_value_heads": 3}, "num_attention_heads 2 is not divisible by num_key_value_heads 3"),
    ({"num_attention_heads": 3}, "hidden_size 16 is not divisible by num_attention_heads 3"),
])  # fmt: skip
def test_a_variant_of_another_family_is_refused_by_the_name_of_its_field(
    folder: Path, changes: dict[str, Any], sentence: str
) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    with pytest.raises(ValueError, match=r"config\.json: ") as caught:
        Pretrained(folder)
    assert sentence in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize(("changes", "damage", "sentence"), [
    ({}, "model.layers.0.self_attn.q_norm.weight", "holds model.layers.0.self_attn.q_norm.weight, which its config.json does"),
    ({}, "model.layers.0.self_attn.q_proj.bias", "holds model.layers.0.self_attn.q_proj.bias, which its config.json does not"),
    ({"num_key_value_heads": 1}, None, "self_attn.k_proj.weight has shape (16, 16), its config.json requires (8, 16)"),
    ({"tie_word_embeddings": True}, "lm_head.weight", "its config.json ties the two; set tie_word_embeddings to false there"),
    ({"tie_word_embeddings": True}, None, None),
    ({}, "model.layers.0.self_attn.rotary_emb.inv_freq", None),
])  # fmt: skip
def test_the_tensors_of_a_llama_must_be_those_of_its_config(
    folder: Path, changes: dict[str, Any], damage: str | None, sentence: str | None
) -> None:
    """Frequencies of old files, and a second copy of a tied head, do no harm."""
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes(config_from_hf(LLAMA))}
    save_file(tensors | ({} if damage is None else {damage: np.ones((9, 16), np.float32)}), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    if sentence is None:
        with Pretrained(folder) as source:
            assert source.config.model_type == "llama"
        return
    with pytest.raises(CheckpointError) as caught:
        Pretrained(folder)
    assert sentence in str(caught.value)


def test_masks_of_old_files_and_links_do_no_harm(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    tensors = {name.removeprefix("transformer."): np.zeros(shape, np.float32) for name, shape in shapes(CONFIG)}
    masks = {"h.0.attn.bias": np.ones((1, 1, 3, 3), bool), "h.0.attn.masked_bias": np.array(-1e4, np.float32)}
    heads = {"score.weight": np.zeros((2, 4), np.float32), "transformer.value.bias": np.zeros(1, np.float32)}
    save_file(tensors | masks | heads, folder / "model.safetensors", {"format": "pt", "note": "x" * 100_000})
    linked = tmp_path_factory.mktemp("linked")
    for file in folder.iterdir():  # as in Hugging Face's cache
        (linked / file.name).symlink_to(file)
    with Pretrained(linked) as source:
        assert source.config.parameter_count == CONFIG.parameter_count
    shutil.rmtree(linked)
