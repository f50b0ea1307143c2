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
