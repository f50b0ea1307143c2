"""Adapters and frozen tensors in recorded programs, run by the interpreter: values, and equal bits in every mode.

The model without adapters whose weights are W + scaling B A is the yardstick of values. test_adapted_training.py trains
adapters on the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from asynctile.kernels.bf16 import to_bf16
from asynctile.kernels.cpu import KERNELS
from asynctile.layers import LoRA
from asynctile.layers.caches import Caches
from asynctile.layers.decode import record_decode
from asynctile.layers.floor import floor_demand
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import KINDS, parts_of, record
from asynctile.layers.tiling import Tiling
from asynctile.layers.tuning import Tuning
from asynctile.program.needs import demand_of
from asynctile.program.operation import READ
from asynctile.program.program import Program
from asynctile.storage.tile import Tile
from tests.interpreter import Model
from tests.laws import law
from tests.layers.adapting import SHAPES, blocks, lora_of, merged, random_adapter
from tests.layers.shapes import LIGHT, Shape
from tests.layers.test_step import Tensors, assert_same_bits, distance, model_of
from tests.layers.training import NARROW
from tests.verbs import VERBS

ALL = SHAPES | LIGHT
#: The most ragged shape of each family, and those of GPT-2 that differ in the number of parts.
FEW = ["gpt2", "llama", "qwen3", "several sequences in a tile", "tiles of one"]
EACH = [name if name in FEW else law(name) for name in ALL]
OTHERS = map(law, ("mistral", "qwen2", "several sequences in a tile"))
SEVERAL = pytest.mark.parametrize("shape", [*FEW[:3], *OTHERS], indirect=True)


@pytest.fixture(params=EACH)
def shape(request: pytest.FixtureRequest) -> Shape:
    return ALL[request.param]


def adapted_model(shape: Shape, freeze: tuple[str, ...] = (), precision: str = "fp32") -> Model:
    """Return a model on the interpreter with random adapters of every linear layer."""
    lora = lora_of(shape.config)
    tuning = Tuning(lora, freeze)
    parameters = Parameters(shape.config, Tiling(shape.config, shape.tile), precision, tuning)
    model = Model.create(parameters, kernels=KERNELS)
    model.load(model_of(shape, kernels=KERNELS).state() | random_adapter(shape.config, lora))
    return model


def without(shape: Shape, state: Tensors, precision: str = "fp32") -> Model:
    """Return the model without adapters that computes the same."""
    weights = {name: value for name, value in state.items() if not name.startswith("base_model.")}
    model = Model.create(Parameters(shape.config, Tiling(shape.config, shape.tile), precision), kernels=KERNELS)
    model.load(merged(shape.config, lora_of(shape.config), weights, state))
    return model


def test_logits_are_those_of_the_merged_weights(shape: Shape) -> None:
    tokens, _ = shape.batch_of_tokens()
    model = adapted_model(shape)
    logits = model.logits(tokens)
    assert distance(logits, without(shape, model.state()).logits(tokens)) < 5e-6
    assert distance(logits, model_of(shape, kernels=KERNELS).logits(tokens)) > 1e-2


def test_a_new_adapter_changes_no_logit(shape: Shape) -> None:
    tokens, _ = shape.batch_of_tokens()
    model = adapted_model(shape)
    model.load({name: 0 * value if "lora_B" in name else value for name, value in model.state().items()})
    assert np.array_equal(model.logits(tokens), model_of(shape, kernels=KERNELS).logits(tokens))


def test_gradients_are_those_of_the_merged_weights(shape: Shape) -> None:
    """With W' = W + scaling B A: dB = scaling dW' A^T, and dA = scaling B^T dW'.

    The bound is that of W', whose rounding moves the gradients of queries and keys by up to 1.4e-5.
    """
    tokens, targets = shape.batch_of_tokens()
    lora, model = lora_of(shape.config), adapted_model(shape)
    loss, found = model.gradients(tokens, targets, shape.micro_batches)
    other = without(shape, model.state())
    again, whole = other.gradients(tokens, targets, shape.micro_batches)
    assert loss == pytest.approx(again, rel=1e-6)
    assert found.keys() == {tensor.name for tensor in lora.tensors(shape.config)}
    state = model.state()
    for tensor in lora.layers(shape.config):
        a, b = (f"base_model.model.{tensor.name.removesuffix('.weight')}.{name}.weight" for name in ("lora_A", "lora_B"))
        dw = whole[tensor.name].astype(np.float64)
        dw = lora.scaling * (dw if tensor.transposed else dw.T)
        parts = [np.s_[:]]
        if shape.length == 1 and "c_attn" in tensor.name:  # a lone token attends to itself, whatever its query and key are
            parts = [np.s_[2 * len(dw) // 3 :]]
        for part in parts:
            assert distance(found[b][part], (dw @ state[a].T.astype(np.float64))[part]) < 3e-5, b
        assert distance(found[a], state[b].T.astype(np.float64) @ dw) < 3e-5, a


@SEVERAL
def test_bits_are_equal_for_any_number_of_kept_parts_and_passes(shape: Shape) -> None:
    tokens, targets = shape.batch_of_tokens()
    model = adapted_model(shape)
    loss, again = model.gradients(tokens, targets, shape.micro_batches)
    rows = shape.parameters().tiling.rows(shape.batch, shape.length, shape.micro_batches)
    parts = parts_of(shape.config)
    for kept, passes in ((0, 1), (parts, 1), (0, rows.most_passes), (1, rows.most_passes), (parts, None)):
        found = model.gradients(tokens, targets, shape.micro_batches, kept=kept, passes=passes)
        assert found[0] == loss
        assert_same_bits(found[1], again)


@SEVERAL
def test_fused_and_two_phase_are_equal_bit_for_bit_and_leave_frozen_tensors(shape: Shape) -> None:
    fused, clipped = adapted_model(shape), adapted_model(shape)
    before = fused.state()
    for step in (1, 2):
        tokens, targets = shape.batch_of_tokens(step)
        one = fused.step(tokens, targets, step, micro_batches=shape.micro_batches)
        other = clipped.step(tokens, targets, step, kind="step_clipped", micro_batches=shape.micro_batches, kept=step)
        assert one == other
        gradients = adapted_model(shape).gradients(tokens, targets, shape.micro_batches)[1]
        if step == 1:
            squares = sum(np.square(value, dtype=np.float64).sum() for value in gradients.values())
            assert one[1] == pytest.approx(squares**0.5, rel=1e-12)
    after = fused.state()
    assert_same_bits(after, clipped.state())
    for name, parameter in fused.parameters.items():
        assert np.array_equal(after[name], before[name]) is not parameter.trains, name


def written(program: Program) -> Iterator[Tile]:
    """Yield the tiles that operations write."""
    for operation in program.operations():
        yield from (tile for tile, how in zip(operation.tiles, operation.access, strict=True) if how != READ)


@pytest.mark.parametrize("shape", SHAPES, indirect=True)
def test_no_program_writes_a_frozen_tile_or_reads_what_nothing_needs(shape: Shape) -> None:
    parameters = adapted_model(shape).parameters
    rows = parameters.tiling.rows(shape.batch, shape.length, shape.micro_batches)
    trained = {tile for item in parameters.trained()
               for tiles in (item.weights, item.exp_avg, item.exp_avg_sq) for tile in tiles.values()}  # fmt: skip
    whole = shape.parameters()
    for kind in KINDS:
        program = record(kind, parameters, rows)
        assert {tile for tile in written(program) if tile.persistent} == (trained if kind.startswith("step") else set())
        if kind not in ("loss", "logits"):
            flops, others = (sum(operation.flops for operation in one.operations())
                             for one in (program, record(kind, whole, rows)))  # fmt: skip
            assert flops < 0.95 * others
            names = [tile.name for tile in written(program)]
            assert not any(name.startswith(("dwte", "dwpe", "dembed_tokens", "dlm_head")) for name in names)
            assert not any(f"d{item.title}[" in name for item in parameters.base() for name in names if len(item.shape) == 2)


@SEVERAL
def test_freezing_tensors_changes_no_bit_of_the_others(shape: Shape) -> None:
    """Gains without the biases beside them and the other way round, matrices, embeddings, a block: every fused operation."""
    tokens, targets = shape.batch_of_tokens()
    plain = model_of(shape, kernels=KERNELS)
    is_gpt2 = shape.config.model_type == "gpt2"
    of_family = ("wte*", "*ln*.weight", "*c_fc*") if is_gpt2 else ("*tokens*", "*norm.weight", "*up_*")
    for replicas in (1, 2):
        _, expected = plain.gradients(tokens, targets, 1, replicas)
        for freeze in (of_family, ("*.0.*",), ("*.bias", "*o_proj*", "wpe*")):
            model = Model.create(shape.parameters().tuned(Tuning(freeze=freeze)), kernels=KERNELS)
            model.load(plain.state())
            _, found = model.gradients(tokens, targets, 1, replicas)
            assert 0 < len(found) < len(expected)
            assert_same_bits(found, expected)


def test_backward_ends_at_the_lowest_block_that_trains() -> None:
    shape = blocks(4, NARROW)
    tokens, targets = shape.batch_of_tokens()
    plain = model_of(shape, kernels=KERNELS)
    _, expected = plain.gradients(tokens, targets)
    rows = shape.parameters().tiling.rows(shape.batch, shape.length)
    for tuning, lowest in (
        (Tuning(freeze=("w?e*", "h.[01].*")), 2), (Tuning(freeze=("w?e*", "h.*")), 4), (Tuning(freeze=("h.*",)), 0),
        (Tuning(LoRA(targets=("h.1.mlp.c_fc", "h.3.attn.c_attn"))), 1), (Tuning(LoRA(), ("*.h.[0-2].*",)), 3),
    ):  # fmt: skip
        parameters = shape.parameters().tuned(tuning)
        assert tuning.lowest_block(parameters.config) == lowest
        for kept in (0, 5):
            program = record("gradients", parameters, rows, kept=kept)
            found = {section.name for _, section in program.sections if section.phase == "backward"}
            assert {name[:3] for name in found} == {f"h.{layer}" for layer in range(lowest, 4)} | {"emb"}
        if tuning.lora is None:
            model = Model.create(parameters, kernels=KERNELS)
            model.load(plain.state())
            assert_same_bits(model.gradients(tokens, targets)[1], expected)


@pytest.mark.parametrize("shape", SHAPES, indirect=True)
def test_a_frozen_half_of_an_adapter_changes_no_bit_of_the_other(shape: Shape) -> None:
    tokens, targets = shape.batch_of_tokens()
    _, expected = adapted_model(shape).gradients(tokens, targets, shape.micro_batches)
    for half in "AB":
        _, found = adapted_model(shape, freeze=(f"*lora_{half}*",)).gradients(tokens, targets, shape.micro_batches)
        assert found.keys() == {name for name in expected if f"lora_{half}" not in name}
        assert_same_bits(found, expected)


@pytest.mark.parametrize("shape", SHAPES, indirect=True)
def test_replicas_change_rounding_only(shape: Shape) -> None:
    tokens, targets = shape.batch_of_tokens()
    model = adapted_model(shape)
    one, other = (model.gradients(tokens, targets, 1, replicas)[1] for replicas in (1, 2))
    for name, value in one.items():
        assert distance(other[name], value) < 5e-6, name


@pytest.mark.parametrize("seed", [*range(3), *map(law, range(3, 30))])
def test_no_program_needs_more_than_the_floor(seed: int) -> None:
    draw = np.random.default_rng(seed)
    shape = ALL[draw.choice(list(ALL))]
    lora = lora_of(shape.config, rank=int(draw.integers(1, 70)))
    tile, precision = int(draw.integers(4, 40)), str(draw.choice(["fp32", "bf16"]))
    parameters = Parameters(shape.config, Tiling(shape.config, tile), precision, Tuning(lora))
    rows = parameters.tiling.rows(shape.batch, int(draw.integers(1, shape.config.block_size + 1)))
    floor = floor_demand(shape.config, tile, parameters.tiling.grain, precision, parameters.tuning).floor_nbytes
    for kind in KINDS:
        needed = demand_of([record(kind, parameters, rows, kept=int(draw.integers(0, 2)))], parameters.states())
        assert needed.floor_nbytes <= floor, (kind, needed.what)
    caches = Caches(parameters, 1, 2)
    program = record_decode(parameters, caches, rows=parameters.tiling.row_tokens, pages=(2,), wanted=1)
    assert demand_of([program], parameters.weights()).floor_nbytes <= floor


@pytest.mark.parametrize("shape", ["gpt2", "llama"], indirect=True)
def test_bf16_adds_no_more_noise_than_to_the_merged_weights(shape: Shape) -> None:
    tokens, targets = shape.batch_of_tokens()
    found = []
    for precision in ("fp32", "bf16"):
        model = adapted_model(shape, precision=precision)
        other = without(shape, model.state(), precision=precision)
        for one in (model, other):
            one.interpreter.kernels = VERBS  # those of the CPU have no bf16
            found.append((one.logits(tokens), one.gradients(tokens, targets, shape.micro_batches)[1]))
        assert all(bool(item.copies) is (precision == "bf16") for item in model.parameters.adapters())
    (wide, gradients), (of_merged, others), (narrow, narrow_gradients), (narrow_merged, narrow_others) = found
    assert 0 < distance(narrow, wide) < 2 * distance(narrow_merged, of_merged) < 0.1
    noise = max(distance(narrow_others[name], value) for name, value in others.items() if value.ndim == 2)
    assert max(distance(narrow_gradients[name], value) for name, value in gradients.items()) < 2 * noise < 0.2
    model = adapted_model(shape, precision="bf16")
    model.interpreter.kernels = VERBS
    model.step(tokens, targets, micro_batches=shape.micro_batches)
    for item in model.parameters.adapters():
        for key, tile in item.copies.items():
            assert np.array_equal(model.interpreter.arrays[tile], to_bf16(model.interpreter.arrays[item.weights[key]]))


def test_scaling_of_one_costs_no_operation() -> None:
    shape = replace(ALL["gpt2"], batch=1, micro_batches=1)
    rows = shape.parameters().tiling.rows(1, shape.length)
    loras = [lora_of(shape.config, alpha=alpha) for alpha in (2.5, 3.0)]
    programs = [record("loss", shape.parameters().tuned(Tuning(lora)), rows) for lora in loras]
    counts = [sum(operation.kernel == "scale" for operation in program.operations()) for program in programs]
    assert counts == [len(rows) * 4, 0]
