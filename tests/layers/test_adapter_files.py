"""A folder of PEFT's is an adapter of its base, or is refused in one line that names the field, the file or the tensor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from asynctile.errors import CheckpointError
from asynctile.layers import GPT2Config, LoRA
from asynctile.layers.adapter_files import AdapterFiles, base_named_in, is_adapter
from asynctile.layers.config import Config
from asynctile.layers.exchange import Base
from asynctile.layers.peft_config import to_peft
from asynctile.storage.checksums import CHECKSUMS, checksum, checksum_record
from tests.layers.adapters import CONFIG_FILE, TENSORS_FILE, layers_of, tensors_of, write
from tests.layers.families import CONFIGS

GPT = GPT2Config(n_layer=2, n_head=2, n_embd=8, block_size=6, vocab_size=11)
LLAMA = CONFIGS["llama"]
RANK = 3
Damage = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "adapter", tensors_of(GPT, RANK, "c_attn", "mlp.c_proj"), RANK, "c_attn", "mlp.c_proj")


def opened(folder: Path, config: Config = GPT) -> AdapterFiles:
    with AdapterFiles(folder, config) as found:
        return found


def test_settings_and_values_are_those_of_the_files(folder: Path) -> None:
    with AdapterFiles(folder, GPT) as found:
        assert found.lora == LoRA(rank=RANK, alpha=2.0 * RANK, targets=("c_attn", "mlp.c_proj"))
        for name, value in load_file(folder / TENSORS_FILE).items():
            layer, _, side = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
            assert np.array_equal(found.piece(layer, side, ()), value)
            corner = (slice(1, 3), slice(1, 2))
            assert np.array_equal(found.piece(layer, side, corner), value[corner])


@pytest.mark.parametrize(("told", "targets"), [
    (["q_proj", "up_proj"], ("q_proj", "up_proj")),
    (["mlp.up_proj", "q_proj"], ("mlp.up_proj", "q_proj")),
    (r".*\.(q_proj|up_proj)", None),
    ("all-linear", None),
    (None, None),
    (["q_proj"], None),
    (["q_proj", "up_proj", "lm_head"], None),
])  # fmt: skip
def test_layers_are_those_of_the_tensors_however_they_were_chosen(tmp_path: Path, told: Any, targets: Any) -> None:
    """Targets that name other layers than the file has are replaced by the layers themselves, as PEFT takes them too."""
    tensors = tensors_of(LLAMA, RANK, "q_proj", "up_proj")
    found = opened(write(tmp_path / "adapter", tensors, RANK, target_modules=told), LLAMA).lora
    layers = [tensor.name.removesuffix(".weight") for tensor in found.layers(LLAMA)]
    assert layers == layers_of(LLAMA, "q_proj", "up_proj") and len(layers) == 4
    assert found.targets == (targets or tuple(layer.removeprefix("model.") for layer in layers))


def test_an_adapter_of_one_layer_alone_is_read(tmp_path: Path) -> None:
    tensors = {name: value for name, value in tensors_of(LLAMA, RANK, "q_proj").items() if ".layers.1." in name}
    found = opened(write(tmp_path / "adapter", tensors, RANK, "q_proj", layers_to_transform=[1]), LLAMA).lora
    assert found.targets == ("layers.1.self_attn.q_proj",)


@pytest.mark.parametrize(("config", "targets"), [(GPT, ("c_attn",)), (LLAMA, ("q_proj", "v_proj"))])
@pytest.mark.parametrize("alpha", [8.0, 2.5])
def test_what_is_written_is_read_back(tmp_path: Path, config: Config, targets: tuple[str, ...], alpha: float) -> None:
    values = to_peft(LoRA(rank=RANK, alpha=alpha), config, "/models/base")
    folder = write(tmp_path / "adapter", tensors_of(config, RANK, *targets), RANK, **values)
    assert opened(folder, config).lora == LoRA(rank=RANK, alpha=alpha, targets=targets)
    assert base_named_in(folder) == "/models/base"
    assert values["fan_in_fan_out"] == isinstance(config, GPT2Config)
    assert type(values["lora_alpha"]) is (int if alpha == 8 else float)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_are_read_as_float32(folder: Path, dtype: Any) -> None:
    tensors = {name: value.astype(dtype) for name, value in load_file(folder / TENSORS_FILE).items()}
    save_file(tensors, folder / TENSORS_FILE)
    with AdapterFiles(folder, GPT) as found:
        piece = found.piece("transformer.h.0.attn.c_attn", "lora_A", ())
    assert piece.dtype == np.float32
    assert np.array_equal(piece, tensors["base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"].astype(np.float32))


@pytest.mark.parametrize("values", [
    {"init_lora_weights": "gaussian", "inference_mode": True, "peft_version": "0.21.2", "megatron_core": "megatron.core"},
    {"rank_pattern": {}, "alpha_pattern": {}, "loftq_config": {}, "modules_to_save": None, "use_dora": False},
    {"qalora_group_size": 16, "layers_pattern": "h", "exclude_modules": ["c_fc"], "revision": "main", "task_type": None},
    {"a_later_number": 0.5, "a_later_switch": False, "a_later_list": []},
    {"fan_in_fan_out": False, "auto_mapping": {"base_model_class": "GPT2LMHeadModel"}, "lora_dropout": 0.3},
])  # fmt: skip
def test_fields_that_change_no_result_are_accepted(folder: Path, values: dict[str, Any]) -> None:
    edited(**values)(folder)
    assert opened(folder).lora.rank == RANK


def edited(**values: Any) -> Damage:
    def edit(folder: Path) -> None:
        path = folder / CONFIG_FILE
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return edit


@pytest.mark.parametrize(("values", "said"), [
    ({"peft_type": "IA3"}, "peft_type is 'IA3', and only 'LORA' is computed here"),
    ({"task_type": "SEQ_CLS"}, "task_type is 'SEQ_CLS', and only 'CAUSAL_LM'"),
    ({"bias": "lora_only"}, "bias is 'lora_only', and only 'none'"),
    ({"use_rslora": True}, "use_rslora is True, and only False"),
    ({"use_dora": True}, "use_dora is True, which is not computed here"),
    ({"lora_bias": True}, "lora_bias is True"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']"),
    ({"rank_pattern": {"h.0": 4}}, "rank_pattern is {'h.0': 4}"),
    ({"alpha_pattern": {"h.0": 4}}, "alpha_pattern is"),
    ({"trainable_token_indices": [1]}, "trainable_token_indices is [1]"),
    ({"target_parameters": ["x"]}, "target_parameters is ['x']"),
    ({"layer_replication": [[0, 2]]}, "layer_replication is"),
    ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens is [5]"),
    ({"loftq_config": {"loftq_bits": 4}}, "loftq_config is"),
    ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4', which changes the weights of the base"),
    ({"init_lora_weights": "olora"}, "init_lora_weights is 'olora'"),
    ({"init_lora_weights": ["x"]}, "init_lora_weights is ['x']"),
    ({"use_later": True}, "use_later is True, which is not computed here"),
    ({"later_config": {"a": 1}}, "later_config is {'a': 1}"),
    ({"r": 0}, "rank is 0, expected a whole number of at least 1"),
    ({"r": "8"}, "rank is '8'"),
    ({"lora_alpha": float("nan")}, "is damaged"),
    ({"lora_alpha": -1}, "alpha is -1, expected a number above 0"),
    ({"r": 10**30}, "rank is 1000000"),
])  # fmt: skip
def test_another_arithmetic_is_refused_by_its_field(folder: Path, values: dict[str, Any], said: str) -> None:
    edited(**values)(folder)
    with pytest.raises((ValueError, CheckpointError)) as caught:
        opened(folder)
    assert said in str(caught.value) and str(folder / CONFIG_FILE) in str(caught.value)
    assert "\n" not in str(caught.value)


def tensors(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(folder: Path) -> None:
        found = load_file(folder / TENSORS_FILE)
        change(found)
        save_file(found, folder / TENSORS_FILE)

    return damage


A0 = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"


@pytest.mark.parametrize(("damage", "said"), [
    (lambda folder: (folder / CONFIG_FILE).unlink(), f"is no adapter ({CONFIG_FILE} is missing)"),
    (lambda folder: (folder / CONFIG_FILE).write_text("[1]"), "is not a JSON object"),
    (lambda folder: (folder / CONFIG_FILE).write_text("{"), "is damaged"),
    (lambda folder: (folder / TENSORS_FILE).unlink(), f"has no {TENSORS_FILE}"),
    (lambda folder: (folder / TENSORS_FILE).write_bytes(b"x"), "is truncated or not a safetensors file"),
    (tensors(lambda found: found.pop(A0)), "has only one of lora_A and lora_B for transformer.h.0.attn.c_attn; copy it again"),
    (tensors(lambda found: found.clear()), "holds no tensor"),
    (tensors(lambda found: found.update({A0: np.zeros((2, 8), np.float32)})), "has shape (2, 8), and the base with rank 3 re"),
    (tensors(lambda found: found.update({A0: np.zeros((RANK, 8), np.int32)})), "holds I32, expected one of"),
    (tensors(lambda found: found.update({A0.replace("h.0", "h.7"): found[A0]})),
     "holds base_model.model.transformer.h.7.attn.c_attn.lora_A.weight, which is no lora_A or lora_B of a linear layer"),
    (tensors(lambda found: found.update({A0.replace("lora_A", "lora_magnitude_vector"): found[A0]})), "lora_magnitude_vector"),
    (tensors(lambda found: found.update({"base_model.model.lm_head.lora_A.weight": found[A0]})), "holds base_model.model.lm_h"),
    (tensors(lambda found: found.update({"\x1b[2J": found[A0]})), r"holds \x1b[2J, which"),
])  # fmt: skip
def test_files_that_are_no_adapter_of_this_base_are_refused_in_one_line(folder: Path, damage: Damage, said: str) -> None:
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        opened(folder)
    assert said in str(caught.value) and str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_adapter_of_another_shape_or_family_is_refused(folder: Path) -> None:
    wider = GPT2Config(n_layer=2, n_head=2, n_embd=10, block_size=6, vocab_size=11)
    with pytest.raises(CheckpointError, match=r"has shape \(3, 8\), and the base with rank 3 requires \(3, 10\); load the"):
        opened(folder, wider)
    with pytest.raises(CheckpointError, match="which is no lora_A or lora_B of a linear layer of the base"):
        opened(folder, LLAMA)


def test_an_adapter_of_another_base_of_the_same_shape_is_refused(folder: Path) -> None:
    write(folder, load_file(folder / TENSORS_FILE), RANK, "c_attn", "mlp.c_proj", metadata={"base_fingerprint": "one"})
    found = opened(folder)
    found.check_base(Base("/models/one", "one"))
    found.check_base(None)
    with pytest.raises(CheckpointError, match="is an adapter of another base: the weights in /models/other are not those"):
        found.check_base(Base("/models/other", "other"))


def test_a_flipped_bit_is_found_by_checksums(folder: Path) -> None:
    sums = {name: checksum(folder / name) for name in (CONFIG_FILE, TENSORS_FILE)}
    (folder / CHECKSUMS).write_text(json.dumps(checksum_record(sums)))
    assert opened(folder).lora.rank == RANK
    content = bytearray((folder / TENSORS_FILE).read_bytes())
    content[-1] ^= 1
    (folder / TENSORS_FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{TENSORS_FILE} is damaged: its checksum is"):
        opened(folder)


def test_a_model_beside_an_adapter_is_a_model(folder: Path, tmp_path: Path) -> None:
    assert is_adapter(folder)
    both = Path(shutil.copytree(folder, tmp_path / "both"))
    (both / "config.json").write_text("{}")
    assert not is_adapter(both) and not is_adapter(tmp_path)
