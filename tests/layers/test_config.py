"""GPT2Config: checks, standard sizes, the Hugging Face form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asynctile.layers.gpt2.config import GPT2Config
from asynctile.layers.parameters import Parameters
from asynctile.layers.tiling import Tiling

#: As published with the models, the tied head counted once.
PUBLISHED = {"gpt2": 124439808, "gpt2-medium": 354823168, "gpt2-large": 774030080, "gpt2-xl": 1557611200}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_standard_sizes(name: str, count: int) -> None:
    config = GPT2Config.named(name)
    assert config.parameter_count == count
    assert config.states_nbytes == 12 * count


def test_the_parameter_count_is_that_of_the_tensors() -> None:
    config = GPT2Config(n_layer=2, n_head=3, n_embd=33, block_size=17, vocab_size=101, n_inner=50)
    tiles = list(Parameters(config, Tiling(config, 16)).states())
    assert sum(tile.nbytes for tile in tiles) == config.states_nbytes


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"n_layer": 0}, "n_layer is 0"),
    ({"n_embd": -8}, "n_embd is -8"),
    ({"vocab_size": 1.5}, "vocab_size is 1.5"),
    ({"block_size": True}, "block_size is True"),
    ({"n_inner": 0}, "n_inner is 0"),
    ({"n_embd": 100, "n_head": 3}, "n_embd 100 is not divisible by n_head 3"),
    ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon is 0.0"),
    ({"initializer_range": float("nan")}, "initializer_range is nan"),
    ({"bos_token_id": -1}, "bos_token_id is -1"),
    ({"bos_token_id": [1]}, r"bos_token_id is \[1\]"),
    ({"eos_token_id": True}, "eos_token_id is True"),
    ({"eos_token_id": [1, "2"]}, "eos_token_id is .*'2'"),
    ({"pad_token_id": 0.5}, "pad_token_id is 0.5"),
])  # fmt: skip
def test_wrong_values_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        GPT2Config(**changes)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gpt3.*choose one of gpt2, gpt2-medium"):
        GPT2Config.named("gpt3")


def test_the_hugging_face_form_round_trips() -> None:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, block_size=16, vocab_size=11, pdrops={"attn_pdrop": 0.1})
    values = config.to_hf()
    assert values["n_positions"] == 16
    assert values["activation_function"] == "gelu_new"
    assert values["attn_pdrop"] == 0.1
    assert values["resid_pdrop"] == 0.0
    back = GPT2Config.from_hf(values)
    assert back.to_hf() == values
    assert hash(back) == hash(config)


def test_a_published_config_is_read() -> None:
    values = {"model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257,
              "embd_pdrop": 0.1, "summary_first_dropout": 0.2, "summary_type": "cls_index", "task_specific_params": {}}
    config = GPT2Config.from_hf(values)
    assert config.block_size == 1024
    assert config.pdrops == {"embd_pdrop": 0.1, "summary_first_dropout": 0.2}
    assert config.has_dropout


def test_dropout_of_a_head_that_language_models_lack_asks_for_none() -> None:
    """transformers writes summary_first_dropout 0.1 into every GPT-2 that it saves."""
    values = {"model_type": "gpt2", "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "summary_first_dropout": 0.1}
    assert not GPT2Config.from_hf(values | SILENT).has_dropout


SILENT = {"n_layer": 1, "n_head": 1, "n_embd": 4, "n_positions": 8}


@pytest.mark.parametrize(("said", "bos", "eos", "pad"), [
    ({"vocab_size": 256, "bos_token_id": None, "eos_token_id": None}, None, None, None),
    ({"vocab_size": 300, "bos_token_id": 257, "eos_token_id": [256, 258], "pad_token_id": 1}, 257, (256, 258), 1),
    ({"vocab_size": 50257, "bos_token_id": None, "eos_token_id": 7}, None, 7, None),
    ({"vocab_size": 150, "bos_token_id": 50256, "eos_token_id": 50256}, None, None, None),
    ({"vocab_size": 257, "bos_token_id": 257, "eos_token_id": [300, 256]}, None, (256,), None),
    ({"vocab_size": 256}, None, None, None),
    ({"vocab_size": 50256}, None, None, None),
    ({"vocab_size": 50257}, 50256, 50256, None),
    ({}, 50256, 50256, None),
])  # fmt: skip
def test_token_ids_are_kept_as_given_and_default_to_those_of_gpt2(said: Any, bos: Any, eos: Any, pad: Any) -> None:
    config = GPT2Config.from_hf(SILENT | said)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (bos, eos, pad)
    values = json.loads(json.dumps(config.to_hf()))
    assert (values["bos_token_id"], values["pad_token_id"]) == (bos, pad)
    assert values["eos_token_id"] == (list(eos) if isinstance(eos, tuple) else eos)
    assert GPT2Config.from_hf(values).to_hf() == values
    assert hash(GPT2Config.from_hf(values)) == hash(config)


def test_a_new_model_has_no_token_ids_and_a_published_size_has_those_in_its_vocabulary() -> None:
    assert (GPT2Config().bos_token_id, GPT2Config().eos_token_id) == (None, None)
    for config in (GPT2Config.named("gpt2"), GPT2Config.named("gpt2-xl", vocab_size=50304)):
        assert (config.bos_token_id, config.eos_token_id) == (50256, 50256)
    assert GPT2Config.named("gpt2", vocab_size=256).eos_token_id is None
    assert GPT2Config.named("gpt2", eos_token_id=None, bos_token_id=5).bos_token_id == 5


@pytest.mark.parametrize(("name", "value"), [
    ("model_type", "llama"), ("activation_function", "relu"), ("tie_word_embeddings", False),
    ("scale_attn_by_inverse_layer_idx", True), ("reorder_and_upcast_attn", True), ("scale_attn_weights", False),
])  # fmt: skip
def test_other_arithmetic_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} {value!r}"):
        GPT2Config.from_hf({**GPT2Config().to_hf(), name: value})


@pytest.mark.reference
def test_transformers_reads_the_same_configuration() -> None:
    transformers = pytest.importorskip("transformers")
    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, block_size=16, vocab_size=11)
    theirs = transformers.GPT2Config(**config.to_hf())
    assert GPT2Config.from_hf(theirs.to_dict()).to_hf().items() >= config.to_hf().items()


def test_a_file_that_is_no_config_is_not_taken_for_gpt2() -> None:
    with pytest.raises(ValueError, match="does not describe a GPT-2"):
        GPT2Config.from_hf({"format": 1, "options": {}})
    assert GPT2Config.from_hf({"n_layer": 2}).n_layer == 2
    assert GPT2Config.from_hf({"model_type": "gpt2"}) == GPT2Config.named("gpt2")
