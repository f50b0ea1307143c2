"""Programs recorded for bf16: the dtype of each tile, the dtypes that kernels combine, and that numbers stay near fp32.

The interpreter runs them by the plain verbs. test_bf16_training.py tests whole trainings in bf16 through an engine.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from asynctile.kernels.bf16 import to_bf16
from asynctile.layers.optimizer import AdamW
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import KINDS, parts_of, record
from asynctile.layers.tiling import Tiling
from asynctile.measure.simulate import simulate
from asynctile.program.needs import demand_of
from asynctile.program.operation import Operation
from asynctile.program.precision import BF16
from asynctile.program.program import Program
from asynctile.storage.tile import Tile
from tests.interpreter import Model
from tests.layers.families import FAMILIES
from tests.layers.shapes import LIGHT, Shape
from tests.layers.test_record import PROGRAMS
from tests.layers.test_step import assert_same_bits, determined, distance

#: Operand types that kernels are built for, a letter each: f float32, b bf16, i int32.
ALLOWED = {
    "add": "ff", "adamw": "fffff", "adamw_bf16": "fffffb", "sum_squares": "f",
    "attention": "fffff bbbbf", "attention_delta": "fff bbf", "attention_backward": "fffffffff bbbbffbbb",
    "attention_backward_whole": "ffffffffff bbbbbffbbb",
    "attention_packed": "fffiff bbbibf", "attention_packed_backward": "fffiffffff bbbibffbbb",
    "column_sums": "ff bf", "column_sums_copy": "ffb", "copy": "ff fb", "fill": "f b",
    "cross_entropy": "fif bif", "cross_entropy_backward": "ifff iffb",
    "embed_positions": "ff bf", "embed_tokens": "iff ibf", "embed_positions_backward": "ff", "embed_tokens_backward": "iff",
    "gelu": "ff bb", "gelu_and_backward": "ffff bbbf",
    "gemm": "fff ffb bbf bbb", "gemm_bias": "ffff fffb bbff bbfb",
    "gemm_onto": "ffff bbff", "gemm_bias_onto": "fffff bbfff",
    "gemm_rows": "fff bbf bbb", "gemm_rows_bias": "ffff bbff bbfb",
    "gemm_rows_onto": "ffff bbff bbbb", "gemm_rows_bias_onto": "fffff bbfff bbfbb", "attention_page": "ffffiiff bbbbiibf",
    "layernorm": "fffff ffffb", "layernorm_backward": "ffffff", "layernorm_gradients": "fffff", "layernorm_stats": "ff",
    "layernorm_sums": "fffff", "layernorm_whole": "fffff ffffb", "layernorm_whole_backward": "fffffff",
    "rmsnorm": "ffff fffb", "rmsnorm_backward": "ffffff", "rmsnorm_gradients": "ffff", "rmsnorm_stats": "ff",
    "rmsnorm_sums": "fffff", "rmsnorm_whole": "ffff fffb", "rmsnorm_whole_backward": "ffffff",
    "rmsnorm_heads": "fff bfb", "rmsnorm_heads_backward": "ffff bfbf", "rope": "f b", "scale": "f b", "swiglu": "fff bbb",
    "swiglu_and_backward": "fffff bbbbb",
}  # fmt: skip
LETTERS = {np.dtype(np.float32): "f", BF16: "b", np.dtype(np.int32): "i"}
#: Names of the tiles that are bf16, in full; logits only where a loss is wanted.
NARROW = re.compile(r"""
    .*\.bf16 | h\.\d+\.ln_[12]\[.* | ln_f\[.*
    | h\.\d+\.attn\.(qkv|out|dout|dqkv|dprojected)\[.* | h\.\d+\.mlp\.(hidden|activated|dhidden|dprojected)\[.*
    | layers\.\d+\.(input|post_attention)_layernorm\[.* | norm\[.*
    | layers\.\d+\.self_attn\.(d?[qkv]|[qk]_norm|out|dout|dprojected)\[\d+,.*
    | layers\.\d+\.mlp\.(gate|up|activated|dgate|dup|dprojected)\[.*
    """, re.VERBOSE)  # fmt: skip


#: Sequences cut and several in a tile, all ragged; few operations.
FEW = (
    "one tile of everything", "several sequences in a tile", "one sequence of one token", "heads in uneven groups, narrow MLP",
    "mistral", "qwen3",
)  # fmt: skip


@pytest.fixture(params=FEW, scope="module")
def shape(request: pytest.FixtureRequest) -> Shape:
    return (LIGHT | FAMILIES)[request.param]


def parameters_of(shape: Shape, precision: str = "bf16") -> Parameters:
    return Parameters(shape.config, Tiling(shape.config, shape.tile), precision)


@lru_cache(maxsize=6 * len(PROGRAMS))
def recorded(shape: Shape, kind: str, precision: str = "bf16", *, kept: int = 0) -> tuple[Parameters, Program]:
    """Return a program and its parameters; the tests of one shape, which run one after another, share them."""
    parameters = parameters_of(shape, precision)
    rows = parameters.tiling.rows(shape.batch, shape.length, shape.micro_batches)
    return parameters, record(kind, parameters, rows, kept=min(kept, parts_of(shape.config)))


def model_of(shape: Shape, precision: str) -> Model:
    """Make a model with larger weights than a new one and biases that are not zero, so that no gradient is close to zero."""
    model = Model.create(parameters_of(shape, precision), seed=1)
    random = np.random.default_rng(5)
    model.load({name: 2 * value + 0.05 * random.standard_normal(value.shape, np.float32)
                for name, value in model.state().items()})
    return model


def outline(program: Program) -> list[Any]:
    return [(entry.kernel, entry.params, [(tile.name, tile.dtype) for tile in entry.tiles])
            for entry in program.operations()]


@pytest.mark.parametrize(("kind", "kept"), PROGRAMS)
def test_every_operation_has_operand_types_that_kernels_are_built_for(shape: Shape, kind: str, kept: int) -> None:
    for precision in ("fp32", "tf32", "bf16"):
        _, program = recorded(shape, kind, precision, kept=kept)
        for operation in program.operations():
            found = "".join(LETTERS[tile.dtype] for tile in operation.operands)
            assert found in ALLOWED[operation.kernel].split(), operation
            assert precision == "bf16" or "b" not in found


@pytest.mark.parametrize(("kind", "kept"), PROGRAMS)
def test_which_tiles_are_bf16(shape: Shape, kind: str, kept: int) -> None:
    parameters, program = recorded(shape, kind, kept=kept)
    for tile in {*program.temporaries, *parameters.states(), *program.inputs.values()}:
        narrow = NARROW.fullmatch(tile.name) is not None or (tile.name.startswith("logits[") and kind != "logits")
        assert (tile.dtype == BF16) == narrow, tile.name


def test_tf32_records_the_programs_of_fp32(shape: Shape) -> None:
    for kind in KINDS:
        assert outline(recorded(shape, kind, "tf32")[1]) == outline(recorded(shape, kind, "fp32")[1])


def test_bf16_adds_no_operation(shape: Shape) -> None:
    """The operations and their order are the same; some also write a copy in bf16, which a layer without a bias makes alone."""
    for kind in KINDS:
        wide = [entry.kernel for entry in recorded(shape, kind, "fp32")[1].operations()]
        narrow = [
            entry.kernel for entry in recorded(shape, kind)[1].operations()
            if entry.kernel != "copy" or entry.operands[1].dtype != BF16
        ]
        assert [kernel.removesuffix("_bf16").removesuffix("_copy") for kernel in narrow] == wide


def test_only_matrices_have_copies_and_only_in_bf16(shape: Shape) -> None:
    for precision in ("fp32", "tf32", "bf16"):
        for parameter in parameters_of(shape, precision).values():
            if precision == "bf16" and len(parameter.shape) == 2:
                assert parameter.compute is parameter.copies
                assert parameter.copies.keys() == parameter.weights.keys()
                assert all(copy.shape == parameter.weights[key].shape and copy.persistent
                           for key, copy in parameter.copies.items())
            else:
                assert parameter.compute is parameter.weights and not parameter.copies


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_update_touches_the_masters_of_copies(shape: Shape, kind: str) -> None:
    parameters, program = recorded(shape, kind)
    masters = {tile for item in parameters.values() if item.copies for tile in item.weights.values()}
    updated: set[Tile] = set()
    for entry in program.entries:
        touched = masters & set(entry.tiles)
        if isinstance(entry, Operation) and entry.kernel == "adamw_bf16":
            assert touched == {entry.operands[0]}
            updated |= touched
        else:
            assert not touched, entry
    assert updated == (masters if kind in ("step", "step_clipped") else set())
    copies = {tile for item in parameters.values() for tile in item.copies.values()}
    unused = copies - set(program.standing)
    assert all(tile.name.startswith("wpe") for tile in unused), "positions that no sequence reaches"


def test_copies_add_two_bytes_an_element_of_a_matrix(shape: Shape) -> None:
    parameters = parameters_of(shape)
    matrices = sum(int(np.prod(item.shape)) for item in parameters.values() if len(item.shape) == 2)
    assert sum(tile.nbytes for tile in parameters.states()) == shape.config.states_nbytes + 2 * matrices


def test_demand_and_simulation_follow_the_dtypes(shape: Shape) -> None:
    found = {}
    for precision in ("fp32", "bf16"):
        parameters, program = recorded(shape, "step", precision)
        demand = demand_of([program], parameters.states())
        traffic = simulate(program, list(parameters.states()), device_memory=demand.floor_nbytes)
        assert traffic.device_peak_nbytes <= demand.floor_nbytes
        # Every master and moment is uploaded at least once, and written back changed.
        assert traffic.downloaded_nbytes >= shape.config.states_nbytes or demand.resident_nbytes <= demand.floor_nbytes
        found[precision] = sum(tile.nbytes for tile in program.temporaries)
    assert 0.4 < found["bf16"] / found["fp32"] < 0.95


def test_losses_logits_and_gradients_are_close_to_fp32(shape: Shape) -> None:
    """bf16 has 8 bits: a rounding is at most 1/256, and sums contain less of it."""
    tokens, targets = shape.batch_of_tokens()
    wide, narrow = model_of(shape, "fp32"), model_of(shape, "bf16")
    (loss, gradients), (found, others) = (model.gradients(tokens, targets, shape.micro_batches) for model in (wide, narrow))
    assert found != loss
    assert found == pytest.approx(loss, rel=3e-3)
    if shape.micro_batches == 1:
        assert found == narrow.loss(tokens, targets)
    # The norms of this Qwen3 make large scores, which round to more: PyTorch with autocast is off by 0.020 and 0.142.
    of_logits, of_gradients = (0.03, 0.15) if shape.config.model_type == "qwen3" else (0.015, 0.04)
    assert distance(narrow.logits(tokens), wide.logits(tokens)) < of_logits
    for name, value in gradients.items():
        assert others[name].dtype == np.float32
        one, other = (determined(name, tensor, shape.length) for tensor in (others[name], value))
        assert distance(one, other) < of_gradients, name


def test_keep_and_recompute_and_fused_and_two_phase_are_equal_bit_for_bit(shape: Shape) -> None:
    tokens, targets = shape.batch_of_tokens()
    model = model_of(shape, "bf16")
    kept, again = (model.gradients(tokens, targets, shape.micro_batches, kept=way) for way in (parts_of(shape.config), 0))
    assert kept[0] == again[0]
    assert_same_bits(kept[1], again[1])
    fused, clipped = model_of(shape, "bf16"), model_of(shape, "bf16")
    for step in (1, 2):
        one = fused.step(tokens, targets, step, micro_batches=shape.micro_batches)
        other = clipped.step(tokens, targets, step, kind="step_clipped", micro_batches=shape.micro_batches, kept=1)
        assert one == other
    for family in ("weights", "exp_avg", "exp_avg_sq"):
        assert_same_bits(fused.state(family), clipped.state(family))


def test_after_steps_copies_are_rounded_masters_and_small_updates_are_not_lost(shape: Shape) -> None:
    tokens, targets = shape.batch_of_tokens()
    model = model_of(shape, "bf16")
    before = model.state()
    for step in (1, 2, 3):
        model.step(tokens, targets, step, AdamW(lr=1e-5, weight_decay=0.0), micro_batches=shape.micro_batches)
    arrays = model.interpreter.arrays
    for name, parameter in model.parameters.items():
        for key, copy in parameter.copies.items():
            assert np.array_equal(arrays[copy], to_bf16(arrays[parameter.weights[key]]))
        moved = np.abs(model.state()[name] - before[name])
        assert 0 < moved.max() < 4e-5, f"{name}: steps of 1e-5 are below what bf16 can hold, not below float32"


@pytest.mark.reference
@pytest.mark.parametrize("shape", FEW[:4], indirect=True)
def test_gradients_are_as_close_to_fp32_as_pytorchs_in_bf16(shape: Shape) -> None:
    torch = pytest.importorskip("torch")
    from tests.reference_gpt2 import ReferenceGPT2

    tokens, targets = shape.batch_of_tokens()
    model = model_of(shape, "bf16")
    exact = ReferenceGPT2.from_state(shape.config, model.state(), torch.float64).gradients(tokens, targets)[1]
    _, found = model.gradients(tokens, targets, shape.micro_batches)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, theirs = ReferenceGPT2.from_state(shape.config, model.state()).gradients(tokens, targets)

    def error(gradients: dict[str, Any]) -> float:
        return float(sum(np.sum((gradients[name] - value) ** 2) for name, value in exact.items()) ** 0.5)

    assert error(found) < 1.2 * error(theirs)
