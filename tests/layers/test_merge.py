"""A merged model is W + scaling B A, rounded once, in the dtypes, shards and with the companions that it should have."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile.errors import CheckpointError
from asynctile.kernels.bf16 import to_bf16
from asynctile.layers import GPT2Config, LlamaConfig
from asynctile.layers.config import Config
from asynctile.layers.exchange import Pretrained
from asynctile.layers.layout import shapes
from asynctile.layers.merge import merge
from asynctile.storage.checksums import check_files
from asynctile.storage.header import FLOATS
from asynctile.storage.tensors import TensorWriter
from tests.layers.adapters import Tensors, added, tensors_of, write
from tests.layers.families import CONFIGS

GPT = GPT2Config(n_layer=2, n_head=2, n_embd=24, block_size=6, vocab_size=11)
RANK = 5
CASES: dict[str, tuple[Config, tuple[str, ...]]] = {
    "gpt2": (GPT, ("c_attn", "mlp.c_proj", "c_fc")),
    "llama": (CONFIGS["llama"], ("q_proj", "v_proj", "down_proj")),
    "qwen2": (CONFIGS["qwen2"], ("k_proj", "o_proj")),
}


def base(folder: Path, config: Config, codes: Any = lambda name: "F32", seed: int = 0) -> Tensors:
    """Write a random model and return its values, float32. codes: the dtype of each tensor in the file."""
    random = np.random.default_rng(seed)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config.to_hf()))
    found: Tensors = {}
    dtypes = {name: (FLOATS[codes(name)], shape) for name, shape in shapes(config)}
    with TensorWriter(folder / "model.safetensors", dtypes, {"format": "pt"}) as writer:
        for name, shape in shapes(config):
            value = random.normal(0, 0.5, shape).astype(np.float32)
            narrow = to_bf16(value) if codes(name) == "BF16" else value.astype(FLOATS[codes(name)])
            writer.write(name, (), narrow)
            wide = (narrow.astype(np.uint32) << 16).view(np.float32) if codes(name) == "BF16" else narrow
            found[name] = wide.astype(np.float32)
    return found


def read(folder: Path, config: Config) -> tuple[Tensors, dict[str, str]]:
    with Pretrained(folder) as found:
        assert found.config.to_hf() == config.to_hf()
        names = [name for name, _ in shapes(config)]
        return {name: found.piece(name, ()) for name in names}, {name: found.dtype(name) for name in names}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pieces", [16 << 20, 400])
def test_the_adapter_is_added_to_the_weights_of_its_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, pieces: int
) -> None:
    monkeypatch.setattr("asynctile.layers.merge.PIECE_NBYTES", pieces)
    config, targets = CASES[case]
    weights, adapter = base(tmp_path / "base", config), tensors_of(config, RANK, *targets)
    folder = write(tmp_path / "adapter", adapter, RANK, *targets)
    told: list[tuple[int, int]] = []
    merge(tmp_path / "base", folder, tmp_path / "out", progress=lambda *done: told.append(done))
    found, dtypes = read(tmp_path / "out", config)
    exact = added(config, weights, adapter, 2.0)
    changed = {name for name in found if not np.array_equal(found[name], weights[name])}
    assert changed == {name for name in found if any(name.endswith(f".{target}.weight") for target in targets)}
    for name in changed:
        assert np.abs(found[name] - exact[name]).max() < 2e-6 * np.abs(exact[name]).max(), name
    assert set(dtypes.values()) == {"F32"}
    assert told[-1][0] == told[-1][1] == sum(value.nbytes for value in weights.values())
    check_files(tmp_path / "out", ["config.json", "model.safetensors", "generation_config.json"])


@pytest.mark.parametrize(("dtype", "code"), [(None, None), ("float32", "F32"), ("bfloat16", "BF16"), ("float16", "F16")])
def test_dtypes_are_those_of_the_base_or_the_one_that_is_asked_for(tmp_path: Path, dtype: str | None, code: str | None) -> None:
    def codes(name: str) -> str:
        return "F32" if "norm" in name else "F16" if "mlp" in name else "BF16"

    config = CONFIGS["qwen3"]
    weights, adapter = base(tmp_path / "base", config, codes), tensors_of(config, RANK, "q_proj")
    folder = write(tmp_path / "adapter", adapter, RANK, "q_proj")
    merge(tmp_path / "base", folder, tmp_path / "out", dtype)
    found, dtypes = read(tmp_path / "out", config)
    assert dtypes == {name: code or codes(name) for name in weights}
    told = json.loads((tmp_path / "out" / "config.json").read_text())["dtype"]
    assert told == (dtype or "bfloat16")
    exact = added(config, weights, adapter, 2.0)
    for name, value in found.items():
        if name.endswith("q_proj.weight"):
            step = {"F32": 2.0**-21, "F16": 2.0**-10, "BF16": 2.0**-7}[dtypes[name]]
            assert (np.abs(value - exact[name]) <= step * np.abs(exact[name]) + 1e-6).all()
        elif dtype in (None, "float32"):
            assert np.array_equal(value, weights[name]), f"{name} is not bit for bit that of the base"


def test_large_models_are_cut_into_shards_with_an_index(tmp_path: Path) -> None:
    weights, adapter = base(tmp_path / "base", GPT), tensors_of(GPT, RANK, "c_attn")
    folder = write(tmp_path / "adapter", adapter, RANK, "c_attn")
    merge(tmp_path / "base", folder, tmp_path / "whole")
    merge(tmp_path / "base", folder, tmp_path / "cut", shard_nbytes=20_000)
    assert len(list((tmp_path / "cut").glob("model-*.safetensors"))) > 2
    one, other = read(tmp_path / "whole", GPT)[0], read(tmp_path / "cut", GPT)[0]
    assert one.keys() == weights.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_no_matrix_is_in_memory_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix of 4 MiB is merged in pieces of 64 KiB; a few of them are in memory at once."""
    monkeypatch.setattr("asynctile.layers.merge.PIECE_NBYTES", 64 << 10)
    config = LlamaConfig(n_layer=1, hidden_size=512, intermediate_size=2048, num_attention_heads=8, num_key_value_heads=1,
                         vocab_size=16, block_size=8)  # fmt: skip
    base(tmp_path / "base", config, lambda name: "BF16")
    folder = write(tmp_path / "adapter", tensors_of(config, RANK, "down_proj"), RANK, "down_proj")
    monkeypatch.setattr("asynctile.layers.merge.checksum", lambda path, tick: "")  # its buffer is larger than the pieces
    tracemalloc.start()
    try:
        merge(tmp_path / "base", folder, tmp_path / "out")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_companions_are_those_of_the_base_and_a_tokenizer_that_of_the_adapter(tmp_path: Path) -> None:
    base(tmp_path / "base", GPT)
    folder = write(tmp_path / "adapter", tensors_of(GPT, RANK, "c_attn"), RANK, "c_attn")
    own = {"tokenizer.json": b"{}", "chat_template.jinja": b"base", "generation_config.json": b"{}", "README.md": b"# base\n"}
    for name, content in own.items():
        (tmp_path / "base" / name).write_bytes(content)
    (folder / "README.md").write_bytes(b"# adapter\n")
    merge(tmp_path / "base", folder, tmp_path / "one")
    assert {name: (tmp_path / "one" / name).read_bytes() for name in own} == own
    (folder / "tokenizer.json").write_bytes(b'{"a": 1}')
    merge(tmp_path / "base", folder, tmp_path / "other")
    assert (tmp_path / "other" / "tokenizer.json").read_bytes() == b'{"a": 1}'
    assert not (tmp_path / "other" / "chat_template.jinja").exists()
    assert (tmp_path / "other" / "README.md").read_bytes() == b"# base\n"


def test_a_merge_that_cannot_be_done_leaves_nothing(tmp_path: Path) -> None:
    weights = base(tmp_path / "base", GPT)
    adapter = tensors_of(GPT, RANK, "c_attn")
    folder = write(tmp_path / "adapter", {name: 300 * value for name, value in adapter.items()}, RANK, "c_attn")
    with pytest.raises(ValueError, match=r"c_attn.weight holds -?\d.*, and float16 reaches 65504; save the model in float32"):
        merge(tmp_path / "base", folder, tmp_path / "out", "float16")
    with pytest.raises(ValueError, match="dtype is 'int8', expected one of"):
        merge(tmp_path / "base", folder, tmp_path / "out", "int8")

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        merge(tmp_path / "base", folder, tmp_path / "out", progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]
    for place in (tmp_path / "base", folder, tmp_path / "base" / "config.json"):
        with pytest.raises(ValueError, match="is a file or holds other files; name an empty or new folder"):
            merge(tmp_path / "base", folder, place)
    assert all(np.array_equal(value, weights[name]) for name, value in read(tmp_path / "base", GPT)[0].items())


def test_the_base_that_an_adapter_names_is_the_only_one(tmp_path: Path) -> None:
    """A copy of the base in other shards and dtypes is the same base; a model of equal shape with other values is not."""
    config = CONFIGS["mistral"]
    base(tmp_path / "base", config, lambda name: "BF16")
    base(tmp_path / "other", config, lambda name: "BF16", seed=1)
    with Pretrained(tmp_path / "base") as found:
        fingerprint = found.base().fingerprint
        assert found.base().path == str(tmp_path / "base")
    tensors = tensors_of(config, RANK, "q_proj")
    folder = write(tmp_path / "adapter", tensors, RANK, "q_proj", metadata={"base_fingerprint": fingerprint})
    still = write(tmp_path / "still", {name: 0 * value for name, value in tensors.items()}, RANK, "q_proj")
    merge(tmp_path / "base", still, tmp_path / "copy", "float32", shard_nbytes=1)
    merge(tmp_path / "copy", folder, tmp_path / "out")
    with pytest.raises(CheckpointError, match=f"{folder} is an adapter of another base: the weights in {tmp_path / 'other'}"):
        merge(tmp_path / "other", folder, tmp_path / "never")
    assert not (tmp_path / "never").exists()
