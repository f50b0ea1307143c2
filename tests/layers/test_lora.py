"""Settings of adapters, their tensors, and the tensors that are trained: names, shapes, initial values, refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asynctile.layers import GPT2Config, LoRA
from asynctile.layers.config import Config
from asynctile.layers.floor import floor_demand
from asynctile.layers.parameters import Parameters, initial_piece
from asynctile.layers.tiling import Tiling
from asynctile.layers.tuning import WHOLE, Tuning
from tests.layers.adapting import EVERY, SHAPES, lora_of, shape_of
from tests.layers.families import CONFIGS

CONFIG = GPT2Config(n_layer=2, n_head=4, n_embd=136, block_size=70, vocab_size=101)
ALL: dict[str, Config] = {"gpt2": CONFIG, **CONFIGS}
PREFIX = "base_model.model.transformer.h"


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"rank": 0}, "rank is 0, expected a whole number of at least 1"),
    ({"rank": 2.5}, "rank is 2.5, expected a whole number"),
    ({"alpha": 0}, "alpha is 0, expected a number above 0"),
    ({"alpha": "32"}, "alpha is '32', expected a number above 0"),
    ({"alpha": math.inf}, "alpha is inf, expected a number above 0"),
    ({"targets": "q_proj"}, r"targets is 'q_proj', expected names of layers, such as \('q_proj', 'v_proj'\)"),
    ({"targets": ()}, "targets is empty, expected names of layers"),
    ({"targets": ("q_proj", 3)}, "targets has 3, expected names of layers"),
    ({"seed": -1}, "seed is -1, expected a whole number of at least 0"),
])  # fmt: skip
def test_a_setting_out_of_range_is_refused_by_its_name(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        LoRA(**settings)
    assert "\n" not in str(caught.value)


def test_the_settings_are_values() -> None:
    lora = LoRA(rank=4, alpha=6, targets=["q_proj"])  # type: ignore[arg-type]
    same = LoRA(rank=4, alpha=6.0, targets=("q_proj",))
    assert lora == same and hash(lora) == hash(same)
    assert lora.scaling == 1.5 and LoRA().scaling == 2.0


@pytest.mark.parametrize("name", ALL)
def test_without_targets_the_layers_are_those_of_peft(name: str) -> None:
    config = ALL[name]
    found = [tensor.name.rpartition("layers." if name != "gpt2" else "h.")[2] for tensor in LoRA().layers(config)]
    layers = ["attn.c_attn"] if name == "gpt2" else ["self_attn.q_proj", "self_attn.v_proj"]
    assert found == [f"{block}.{layer}.weight" for block in range(config.n_layer) for layer in layers]


def test_tensors_have_the_names_and_shapes_of_peft() -> None:
    lora = LoRA(rank=5, targets=("c_attn", "mlp.c_proj"))
    found = {tensor.name: shape_of(CONFIG, lora, tensor) for tensor in lora.tensors(CONFIG)}
    assert list(found.items()) == [
        (f"{PREFIX}.{block}.{layer}.{matrix}.weight", (5, inputs) if matrix == "lora_A" else (outputs, 5))
        for block in range(2)
        for layer, inputs, outputs in (("attn.c_attn", 136, 408), ("mlp.c_proj", 544, 136))
        for matrix in ("lora_A", "lora_B")
    ]


def test_a_target_is_the_last_parts_of_a_title_or_all_of_it() -> None:
    for target, layers in (("c_proj", ["h.0.attn.c_proj", "h.0.mlp.c_proj", "h.1.attn.c_proj", "h.1.mlp.c_proj"]),
                           ("attn.c_proj", ["h.0.attn.c_proj", "h.1.attn.c_proj"]),
                           ("h.1.mlp.c_fc", ["h.1.mlp.c_fc"])):  # fmt: skip
        found = LoRA(targets=(target,)).layers(CONFIG)
        assert [tensor.name for tensor in found] == [f"transformer.{layer}.weight" for layer in layers]


def test_a_rank_above_the_narrower_side_of_a_layer_is_told_with_the_largest_useful_one() -> None:
    assert LoRA(rank=136).excess(CONFIG) is None
    assert LoRA(rank=137).excess(CONFIG) == (
        "adapters of rank 137 are larger than useful: h.0.attn.c_attn is 136 x 408, and no change of it has a rank above 136; "
        "choose a rank of at most 136")  # fmt: skip
    qwen = ALL["qwen2"]
    found = LoRA(rank=5, targets=("q_proj", "v_proj")).excess(qwen)
    assert found is not None and "layers.0.self_attn.v_proj is 4 x 40" in found
    assert LoRA(rank=5, targets=("q_proj",)).excess(qwen) is None


@pytest.mark.parametrize("target", ["proj", "wte", "ln_1", "lm_head", "c_attn.weight", "q_proj"])
def test_a_target_that_names_no_layer_is_refused_with_those_that_exist(target: str) -> None:
    sentence = f"targets has '{target}', which names no layer of a gpt2; its layers are c_attn, c_proj, c_fc$"
    with pytest.raises(ValueError, match=sentence):
        LoRA(targets=("c_attn", target)).layers(CONFIG)


@pytest.mark.parametrize("tile", [40, 64, 1000])
def test_new_values_are_those_of_peft_and_do_not_depend_on_the_tile(tile: int) -> None:
    lora = LoRA(rank=100, targets=EVERY["gpt2"], seed=3)
    for parameter in Parameters(CONFIG, Tiling(CONFIG, tile), tuning=Tuning(lora)).adapters():
        whole = initial_piece(parameter, tuple(slice(0, n) for n in parameter.shape), lora.seed)
        for key in parameter.weights:
            assert np.array_equal(initial_piece(parameter, parameter.index(*key), lora.seed), whole[parameter.index(*key)])
        if "lora_B" in parameter.name:
            assert not whole.any()
        else:
            bound = 1 / math.sqrt(parameter.shape[1])  # torch.nn.init.kaiming_uniform_(a=sqrt(5))
            assert np.abs(whole).max() <= bound and np.abs(whole).max() > 0.99 * bound
            assert whole.std() == pytest.approx(bound / math.sqrt(3), rel=0.02)
            assert abs(whole.mean()) < 0.02 * bound
            assert not np.array_equal(whole, initial_piece(parameter, tuple(slice(0, n) for n in parameter.shape), 4))


@pytest.mark.parametrize("name", SHAPES)
def test_adapters_are_tensors_of_the_model_that_are_trained_alone(name: str) -> None:
    shape = SHAPES[name]
    base, lora = shape.parameters(), lora_of(shape.config)
    found = base.tuned(Tuning(lora))
    assert [*found] == [*base, *(tensor.name for tensor in lora.tensors(shape.config))]
    assert [item.name for item in found.trained()] == [item.name for item in found.adapters()]
    assert [item.name for item in found.base()] == [*base]
    for parameter in found.base():
        assert parameter.weights is base[parameter.name].weights and not parameter.exp_avg and not parameter.exp_avg_sq
    for parameter in found.adapters():
        assert parameter.exp_avg.keys() == parameter.exp_avg_sq.keys() == parameter.weights.keys()
        layer, _, matrix = parameter.title.removesuffix(".weight").rpartition(".")
        weight, _ = found.pair(layer)
        assert found.pair(f"{layer}.{matrix}") == (parameter, None)
        inputs = weight.inputs
        assert len(parameter.weights) == (inputs if matrix == "lora_A" else len(weight.weights) // inputs)
    again = Parameters(shape.config, shape.parameters().tiling, tuning=Tuning(lora))
    assert [tile.name for tile in again.states()] == [tile.name for tile in found.states()]
    assert found.states_nbytes == sum(tile.nbytes for tile in found.states())


def test_patterns_freeze_tensors_with_or_without_their_prefix() -> None:
    base = Parameters(CONFIG, Tiling(CONFIG, 64))
    assert base.tuning == WHOLE and len(list(base.trained())) == len(base)
    for patterns in (("wte*", "h.?.ln_*", "transformer.*.bias"), ("transformer.wte.weight", "*ln_[12]*", "*.bias")):
        found = base.tuned(Tuning(freeze=patterns))
        trained, layers = {item.title for item in found.trained()}, ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        matrices = {f"h.{block}.{layer}.weight" for block in range(2) for layer in layers}
        assert trained == {"wpe.weight", "ln_f.weight"} | matrices
        assert all(parameter.exp_avg is base[name].exp_avg for name, parameter in found.items() if parameter.trains)
    found = base.tuned(Tuning(LoRA(), ("*.h.0.*", "*lora_B*")))
    assert [item.name for item in found.trained()] == [f"{PREFIX}.1.attn.c_attn.lora_A.weight"]


@pytest.mark.parametrize(("tuning", "sentence"), [
    (Tuning(freeze=("wte*", "lm_head*")), r"freeze has 'lm_head\*', which matches no tensor of a gpt2; its tensors have names "
                                          r"such as transformer\.wte\.weight"),
    (Tuning(freeze=("*",)), r"freeze is \('\*',\), which leaves nothing to train"),
    (Tuning(LoRA(), ("*lora_?*",)), "leaves nothing to train; leave out a pattern"),
    (Tuning(LoRA(targets=("q_proj",))), "targets has 'q_proj', which names no layer"),
])  # fmt: skip
def test_a_tuning_that_does_not_fit_is_refused(tuning: Tuning, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        tuning.check(CONFIG)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("freeze", ["wte*", ("",), (b"wte",), 5])
def test_patterns_are_strings_in_a_collection(freeze: Any) -> None:
    with pytest.raises(ValueError, match=r"^freeze (is|has) .*, expected names of tensors, such as \('wte\*', '\*\.bias'\)$"):
        Tuning(freeze=freeze)


def test_one_block_stands_for_blocks_that_differ() -> None:
    config = replace(CONFIG, n_layer=12)
    lora = LoRA(rank=2, targets=("h.3.attn.c_attn", "mlp.c_fc", "h.11.attn.c_attn"), seed=5)
    found = Tuning(lora, ("*.h.?.*lora_A*", "*.h.1[01].*lora_A*", "*.h.1.*")).of_one_block(config)
    one = replace(config, n_layer=1)
    trained = [name for name in Parameters(one, Tiling(one, 64), tuning=found) if found.trains(one, name)]
    assert trained == [f"{PREFIX}.0.{layer}.lora_B.weight" for layer in ("attn.c_attn", "mlp.c_fc")]
    partly = Tuning(freeze=("wte*", "h.1.*", "h.0.ln_1.*", "h.1?.ln_2.bias", "h.?.ln_2.bias")).of_one_block(config)
    frozen = [name for name in Parameters(one, Tiling(one, 64)) if not partly.trains(one, name)]
    assert frozen == ["transformer.wte.weight", "transformer.h.0.ln_2.bias"]
    assert WHOLE.of_one_block(config) is WHOLE


def test_the_floor_counts_adapters() -> None:
    shape = SHAPES["gpt2"]
    floors = [floor_demand(shape.config, shape.tile, tuning=tuning).floor_nbytes
              for tuning in (WHOLE, Tuning(lora_of(shape.config)), Tuning(lora_of(shape.config, rank=500)))]  # fmt: skip
    assert floors[1] <= floors[0] < floors[2]
