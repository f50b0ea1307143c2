"""The configurations of LLaMA, Mistral, Qwen2 and Qwen3: checks, published sizes, and the Hugging Face form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from asynctile.layers.architectures import ARCHITECTURES, config_from_hf
from asynctile.layers.layout import shapes
from asynctile.layers.llama.config import LlamaConfig
from asynctile.layers.llama.rotary_config import RotaryConfig
from asynctile.layers.mistral.config import MistralConfig
from asynctile.layers.parameters import Parameters, initial_piece
from asynctile.layers.qwen2.config import Qwen2Config
from asynctile.layers.qwen3.config import Qwen3Config
from asynctile.layers.tiling import Tiling
from tests.layers.families import CONFIGS, SCALING

LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192}  # fmt: skip
_WIDE = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
#: Parts of published config.json files, and the number of parameters of their models.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-3.1-8B": ({"model_type": "llama", **_WIDE, "intermediate_size": 14336, "vocab_size": 128256,
                      "max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_scaling": LLAMA_3}, 8030261248),
    "Mistral-7B-v0.3": ({"model_type": "mistral", **_WIDE, "intermediate_size": 14336, "vocab_size": 32768,
                         "max_position_embeddings": 32768, "sliding_window": None}, 7248023552),
    "Qwen2.5-0.5B": ({"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
                      "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936,
                      "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 32768}, 494032768),
    "Qwen3-8B": ({"model_type": "qwen3", **_WIDE, "num_hidden_layers": 36, "head_dim": 128, "intermediate_size": 12288,
                  "vocab_size": 151936, "max_position_embeddings": 40960}, 8190735360),
    "Qwen3-32B": ({"model_type": "qwen3", **_WIDE, "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64,
                   "head_dim": 128, "intermediate_size": 25600, "vocab_size": 151936}, 32762123264),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_parameters(name: str) -> None:
    values, count = PUBLISHED[name]
    config = config_from_hf(values)
    assert config.parameter_count == count
    assert config.model_type == values["model_type"]
    assert config.to_hf().items() >= {key: value for key, value in values.items() if key != "sliding_window"}.items()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_hugging_face_form_round_trips(name: str) -> None:
    config = replace(CONFIGS[name], eos_token_id=(3, 5), bos_token_id=1)
    values = json.loads(json.dumps(config.to_hf()))
    back = config_from_hf(values)
    assert back == config
    assert hash(back) == hash(config)
    assert back.to_hf() == values
    assert values["architectures"] == [f"{type(config).__name__.removesuffix('Config')}ForCausalLM"]


def test_tensors_have_hugging_faces_names_and_shapes() -> None:
    found = dict(shapes(CONFIGS["qwen3"]))
    assert found["model.embed_tokens.weight"] == found["lm_head.weight"] == (53, 40)
    of_block = {name.removeprefix("model.layers.1."): size for name, size in found.items() if ".layers.1." in name}
    assert of_block == {
        "input_layernorm.weight": (40,), "post_attention_layernorm.weight": (40,),
        "self_attn.q_proj.weight": (36, 40), "self_attn.q_proj.bias": (36,), "self_attn.k_proj.weight": (12, 40),
        "self_attn.k_proj.bias": (12,), "self_attn.v_proj.weight": (12, 40), "self_attn.v_proj.bias": (12,),
        "self_attn.q_norm.weight": (6,), "self_attn.k_norm.weight": (6,), "self_attn.o_proj.weight": (40, 36),
        "self_attn.o_proj.bias": (40,), "mlp.gate_proj.weight": (52, 40), "mlp.up_proj.weight": (52, 40),
        "mlp.down_proj.weight": (40, 52),
    }  # fmt: skip
    assert "lm_head.weight" not in dict(shapes(CONFIGS["qwen2"]))
    biases = {name.split(".")[-2] for name, _ in shapes(CONFIGS["qwen2"]) if name.endswith("bias")}
    assert biases == {"q_proj", "k_proj", "v_proj"}
    assert not [name for name, _ in shapes(CONFIGS["mistral"]) if name.endswith("bias")]


def test_a_new_models_norms_are_ones_its_biases_zeros_and_its_matrices_drawn() -> None:
    config = replace(CONFIGS["qwen3"], initializer_range=0.5)
    for parameter in Parameters(config, Tiling(config, 64)).values():
        piece = initial_piece(parameter, parameter.index(0, 0), seed=1)
        if len(parameter.shape) == 2:
            assert parameter.decay
            assert 0.3 < float(piece.std()) < 0.7, parameter.name
        else:
            assert not parameter.decay
            assert set(piece.tolist()) == {0.0 if parameter.name.endswith("bias") else 1.0}, parameter.name


@pytest.mark.parametrize("tile", [1, 5, 16, 40, 1000])
def test_keys_are_cut_with_the_queries_that_share_them(tile: int) -> None:
    config = LlamaConfig(n_layer=1, vocab_size=9, hidden_size=32, intermediate_size=40, num_attention_heads=28,
                         num_key_value_heads=7, head_dim=4)  # fmt: skip
    queries, keys = Tiling(config, tile)["heads"], Tiling(config, tile)["key_heads"]
    assert [4 * offset for offset in keys.offsets] == list(queries.offsets)
    assert all(offset % 4 == 0 for offset in keys.offsets)
    assert keys.offsets[-1] == 28
    assert max(queries.size(group) for group in range(len(queries))) <= max(tile, 16)
    assert config.axes["key_heads"].count(tile) >= len(keys)


def test_an_untied_embedding_is_looked_up_and_a_tied_one_multiplies() -> None:
    tied, untied = (replace(CONFIGS["mistral"], tie_word_embeddings=tie) for tie in (True, False))
    assert untied.parameter_count - tied.parameter_count == 53 * 40
    assert untied.flops_per_token(10) == tied.flops_per_token(10) == 6 * tied.parameter_count + 12 * 40 * 10


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"hidden_size": 0}, "hidden_size is 0"),
    ({"num_key_value_heads": 3}, "num_attention_heads 10 is not divisible by num_key_value_heads 3"),
    ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
    ({"num_attention_heads": 9, "num_key_value_heads": 9, "head_dim": None}, "hidden_size 40 is not divisible by num_attent"),
    ({"head_dim": 5}, "head_dim is 5, expected an even number"),
    ({"rms_norm_eps": 0.0}, "rms_norm_eps is 0.0"),
    ({"rope_theta": "10000"}, "rope_theta is '10000'"),
    ({"attention_bias": 1}, "attention_bias is 1"),
    ({"tie_word_embeddings": None}, "tie_word_embeddings is None"),
    ({"attention_dropout": 2}, "attention_dropout is 2"),
    ({"eos_token_id": -1}, "eos_token_id is -1"),
    ({"rope_scaling": "llama3"}, "rope_scaling is 'llama3'"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling has rope_type 'yarn'; only 'default' and 'llama3'"),
    ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_scaling has rope_type 'linear'"),
    ({"rope_scaling": SCALING | {"factor": 0}}, "rope_scaling has factor 0"),
    ({"rope_scaling": SCALING | {"high_freq_factor": 1.0}}, "low_freq_factor 1.0 and high_freq_factor 1.0"),
])  # fmt: skip
def test_wrong_values_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(CONFIGS["llama"], **changes)


@pytest.mark.parametrize(("family", "said", "sentence"), [
    ("llama", {"model_type": "mistral"}, "model_type 'mistral', expected 'llama'"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu'; only 'silu'"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5; only 1"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}, "rope_scaling": None}, "rope_type 'dynamic'"),
    ("mistral", {"sliding_window": 49}, "sliding_window 49 with max_position_embeddings 50"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 32}, "sliding_window 32 with max_position_embeddings 50"),
    ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, r"layer_types \['full_attention', 'sliding"),
    ("qwen3", {"layer_types": "full_attention"}, "layer_types 'full_attention'"),
])  # fmt: skip
def test_other_arithmetic_is_refused_by_the_name_of_its_field(family: str, said: dict[str, Any], sentence: str) -> None:
    values = CONFIGS[family].to_hf() | said
    with pytest.raises(ValueError, match=sentence):
        ARCHITECTURES[family].config.from_hf(values)


def test_a_sliding_window_that_no_sequence_exceeds_is_read() -> None:
    for family, said in (("mistral", {"sliding_window": 50}), ("qwen2", {"use_sliding_window": True, "sliding_window": 64}),
                         ("qwen2", {"sliding_window": 3}), ("qwen3", {"layer_types": ["full_attention"] * 2})):  # fmt: skip
        assert config_from_hf(CONFIGS[family].to_hf() | said) == CONFIGS[family]
    with pytest.raises(ValueError, match="sliding_window 4096 with max_position_embeddings 131072"):
        config_from_hf({"model_type": "mistral"})  # which transformers reads with its default window


def test_both_forms_of_rotary_positions_are_read() -> None:
    values = {**CONFIGS["llama"].to_hf(), "rope_theta": 5e5}
    old = config_from_hf(values)
    del values["rope_theta"], values["rope_scaling"]
    assert config_from_hf(values | {"rope_parameters": {**SCALING, "rope_theta": 5e5}}) == old
    plain = config_from_hf(values | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})
    assert plain == replace(old, rope_scaling=None)
    assert isinstance(old, RotaryConfig)
    assert old.rotation == (5e5, 4.0, 1.0, 4.0, 32.0)


@pytest.mark.parametrize(("config", "bos", "eos"), [
    (LlamaConfig, 1, 2), (MistralConfig, 1, 2), (Qwen2Config, None, None), (Qwen3Config, None, None)])  # fmt: skip
def test_token_ids_that_a_file_leaves_out_are_those_of_transformers(config: type[RotaryConfig], bos: Any, eos: Any) -> None:
    found = config.from_hf({"model_type": config.model_type, "sliding_window": None})
    assert (found.bos_token_id, found.eos_token_id) == (bos, eos)
    assert config().bos_token_id is None


@pytest.mark.reference
@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_reads_the_same_configuration(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = CONFIGS[name]
    theirs = getattr(transformers, type(config).__name__)(**config.to_hf())
    assert config_from_hf(theirs.to_dict()) == config
    assert config_from_hf({"model_type": name, **theirs.to_diff_dict()}) == config
