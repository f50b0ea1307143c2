"""Replicas in recorded programs: the law that later lets other devices carry them, run by the interpreter.

The law: the partial of a replica is, bit for bit, the gradient of a program that has only that replica's rows, with the loss
scale of the whole batch. A fixed binary tree adds the partials. The tied wte has two partials a replica, one from each end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import log2
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from asynctile.kernels.cpu import KERNELS
from asynctile.layers.parameters import Parameters
from asynctile.layers.rows import Rows
from asynctile.layers.step import parts_of, record
from asynctile.layers.tiling import Tiling
from asynctile.program.needs import demand_of
from asynctile.program.operation import Operation
from asynctile.program.program import Program
from asynctile.storage.tile import NEVER, Tile, corner
from tests.interpreter import Interpreter, Model, batch_inputs
from tests.laws import covering, law
from tests.layers.shapes import LIGHT, Shape
from tests.layers.test_record import TRAINING
from tests.layers.test_step import Tensors, assert_same_bits, determined, distance, model_of
from tests.verbs import VERBS

Array = NDArray[Any]

WTE = "transformer.wte.weight"
#: A batch of eight in place of each shape's own, and its way through the layers: cut sequences, and several in a tile.
CUT = replace(LIGHT["sequences cut, all ragged"], batch=8, length=20, micro_batches=1)
GROUPED = replace(LIGHT["several sequences in a tile"], batch=8, micro_batches=1)
SINGLE = replace(LIGHT["tiles of one"], batch=8)
SHAPED = {"cut": CUT, "grouped": GROUPED, "tiles of one": SINGLE}


@dataclass
class BothEnds(Interpreter):
    """An interpreter that keeps the two ends of the tied wte apart.

    head: what the head has added to each tile of wte's gradient. The embedding then adds to zeros.
    """

    head: dict[Tile, Array] = field(default_factory=dict)

    def execute(self, operation: Operation, arrays: dict[Tile, Array], numbers: Array) -> None:
        target = operation.operands[-1]
        if operation.kernel == "embed_tokens_backward" and target not in self.head:
            self.head[target] = arrays[target].copy()
            arrays[target][:] = 0
        super().execute(operation, arrays, numbers)


def gradients_alone(model: Model, rows: Rows, inputs: Mapping[str, Array], kept: int) -> Tensors:
    """Return the gradients of these rows alone by name; those of the two ends of wte as "head" and "embedding"."""
    program = record("gradients", model.parameters, rows, kept=kept)
    found = {name: np.zeros(parameter.shape, np.float32) for name, parameter in model.parameters.items()}
    interpreter = BothEnds(model.interpreter.arrays, model.interpreter.kernels)
    interpreter.run(program, inputs, found)
    found["embedding"] = found.pop(WTE)
    found["head"] = np.zeros_like(found["embedding"])
    for fetch in program.fetches:
        if fetch.key == WTE:
            place = found["head"][fetch.index]
            place[...] = corner(interpreter.head[fetch.tile], place.shape)
    return found


def tree(terms: list[Array]) -> Array:
    """Return the sum by halves, each sum rounded to float32."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return tree(terms[:middle]) + tree(terms[middle:])


def alone_and_added(model: Model, shape: Shape, replicas: int, kept: int) -> Tensors:
    """Return the gradients that follow from each replica alone and the tree, without a program for several replicas."""
    tokens, targets = shape.batch_of_tokens()
    scale = batch_inputs(model.parameters.tiling.rows(*tokens.shape), tokens, targets)["scale"]
    rows = model.parameters.tiling.rows(shape.batch // replicas, shape.length, shape.micro_batches)
    shares = zip(np.split(tokens, replicas), np.split(targets, replicas), strict=True)
    partials = [gradients_alone(model, rows, batch_inputs(rows, *share) | {"scale": scale}, kept) for share in shares]
    added = {name: tree([partial[name] for partial in partials]) for name in partials[0]}
    added[WTE] = added.pop("head") + added.pop("embedding")
    return added


CUTS = [("cut", 2, 2), ("grouped", 4, 2), ("tiles of one", 4, 1), ("cut", 4, 1), ("cut", 8, 1), ("grouped", 2, 4)]


@pytest.mark.parametrize(("kernels", "cut"), covering({"numpy": VERBS, "cpu": KERNELS}, CUTS, few=2))
def test_a_partial_is_the_gradient_of_its_rows_alone_and_their_tree_is_the_gradient(
    kernels: Mapping[str, Callable[..., Any]], cut: tuple[str, int, int]
) -> None:
    name, replicas, micro_batches = cut
    shape = replace(SHAPED[name], micro_batches=micro_batches)
    model = model_of(shape, kernels=kernels)
    for kept in (0, parts_of(shape.config)):
        _, found = model.gradients(*shape.batch_of_tokens(), micro_batches, replicas, kept=kept)
        assert_same_bits(found, alone_and_added(model, shape, replicas, kept))


def test_the_law_holds_in_bf16_too() -> None:
    model = Model.create(Parameters(GROUPED.config, Tiling(GROUPED.config, GROUPED.tile), "bf16"), seed=1)
    _, found = model.gradients(*GROUPED.batch_of_tokens(), replicas=4)
    assert_same_bits(found, alone_and_added(model, GROUPED, 4, kept=0))


def test_replicas_change_the_order_of_sums_and_so_the_last_bits() -> None:
    model = model_of(GROUPED, kernels=KERNELS)
    found = [model.gradients(*GROUPED.batch_of_tokens(), 4 // replicas, replicas) for replicas in (1, 2, 4)]
    assert len({loss for loss, _ in found}) == 1, "a loss is a sum of numbers in program order"
    for name in ("wte.weight", "wpe.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_fc.bias", "ln_f.bias"):
        one, *several = (gradients[f"transformer.{name}"].tobytes() for _, gradients in found)
        assert one not in several, name


class Wide(Interpreter):
    """An interpreter in which every number is float64."""

    def run(self, program: Program, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None) -> Any:
        tiles = [tile for tile in program.temporaries if tile.dtype == np.float32]
        self.arrays |= {tile: np.zeros(tile.shape) for tile in tiles}
        return super().run(program, inputs, outputs)


def in_float64(model: Model, shape: Shape, replicas: int) -> Tensors:
    """Return the gradients in float64."""
    tokens, targets = shape.batch_of_tokens()
    rows = model.parameters.tiling.rows(shape.batch, shape.length, 1, replicas)
    found = {name: np.zeros(parameter.shape) for name, parameter in model.parameters.items()}
    wide = Wide({tile: array.astype(np.float64) for tile, array in model.interpreter.arrays.items()})
    wide.run(record("gradients", model.parameters, rows), batch_inputs(rows, tokens, targets), found)
    return found


@pytest.mark.parametrize("name", ["cut", law("grouped")])
def test_the_gradient_of_several_replicas_is_that_of_the_whole_batch(name: str) -> None:
    """In float64, to the rounding of float64; in the float32 of the CPU's kernels, to 1e-6."""
    shape = SHAPED[name]
    expected = in_float64(model_of(shape), shape, 1)
    _, found = model_of(shape, kernels=KERNELS).gradients(*shape.batch_of_tokens(), replicas=4)
    for tensor, wide in in_float64(model_of(shape), shape, 4).items():
        exact, again, narrow = (determined(tensor, side[tensor], shape.length) for side in (expected, {tensor: wide}, found))
        # The loss scale is float32 in both.
        assert distance(again, exact) < 1e-12, tensor
        assert distance(narrow, exact) < 1e-6, tensor


@pytest.mark.parametrize(("name", "replicas"), covering(["cut", "grouped"], [2, 4], few=1))
def test_passes_and_kept_activations_change_no_bit(name: str, replicas: int) -> None:
    shape = SHAPED[name]
    tokens, targets = shape.batch_of_tokens()
    model = model_of(shape, kernels=KERNELS)
    loss, expected = model.gradients(tokens, targets, 1, replicas)
    most = model.parameters.tiling.rows(shape.batch, shape.length, 1, replicas).most_passes
    for passes, kept in ((1, 1), (1, parts_of(shape.config)), (most, 0), (most, 2)):
        found = model.gradients(tokens, targets, 1, replicas, passes=passes, kept=kept)
        assert found[0] == loss
        assert_same_bits(found[1], expected)


@pytest.mark.parametrize("replicas", [law(2), 4])
def test_fused_and_two_phase_are_equal_and_report_the_norm_of_the_gradients(replicas: int) -> None:
    tokens, targets = CUT.batch_of_tokens()
    fused, clipped = model_of(CUT, kernels=KERNELS), model_of(CUT, kernels=KERNELS)
    _, gradients = fused.gradients(tokens, targets, 1, replicas)
    expected = sum(np.square(value, dtype=np.float64).sum() for value in gradients.values()) ** 0.5
    one = fused.step(tokens, targets, replicas=replicas)
    assert one == clipped.step(tokens, targets, kind="step_clipped", replicas=replicas, kept=1)
    assert one[1] == pytest.approx(expected, rel=1e-12)
    for family in ("weights", "exp_avg", "exp_avg_sq"):
        assert_same_bits(fused.state(family), clipped.state(family))


def recorded(shape: Shape, kind: str, replicas: int, **more: Any) -> tuple[Parameters, Program]:
    parameters = shape.parameters()
    rows = parameters.tiling.rows(shape.batch, shape.length, shape.micro_batches, replicas)
    return parameters, record(kind, parameters, rows, **more)


@pytest.mark.parametrize(("kind", "kept"), covering(TRAINING, [0, 3], few=2))
def test_at_most_one_partial_more_than_the_tree_is_deep_is_alive_for_any_tile(kind: str, kept: int) -> None:
    """The two ends of wte make a tree that is deeper by one."""
    for replicas in (2, 4, 8):
        _, program = recorded(CUT, kind, replicas, kept=kept)
        alive: dict[str, set[Tile]] = {}
        deepest: dict[str, int] = {}
        for entry, uses in zip(program.entries, program.next_uses, strict=True):
            for tile, use in zip(entry.tiles, uses, strict=True):
                name, dot, number = tile.name.rpartition(".")
                if tile.persistent or not (dot and number.isdigit()):
                    continue
                own = alive.setdefault(name, set())
                own.add(tile)
                deepest[name] = max(deepest.get(name, 0), len(own))
                if use == NEVER:
                    own.remove(tile)
        for name, most in deepest.items():
            assert most == log2(replicas) + 1 + name.startswith("dwte"), name


def test_each_partial_is_added_once_and_each_tile_is_updated_once() -> None:
    for replicas in (1, 2, 4, 8):
        parameters, program = recorded(CUT, "step", replicas)
        kernels = [operation.kernel for operation in program.operations()]
        tiles = sum(len(parameter.weights) for parameter in parameters.values())
        ends = tiles + len(parameters[WTE].weights)
        assert kernels.count("adamw") == tiles
        assert kernels.count("add") == (0 if replicas == 1 else ends * replicas - tiles)


def test_the_host_hears_the_same_numbers_in_the_same_order_from_any_replicas() -> None:
    numbers = [recorded(replace(CUT, micro_batches=4 // replicas), "step", replicas)[1].numbers for replicas in (1, 2, 4)]
    assert numbers[0] == numbers[1] == numbers[2]


@pytest.mark.parametrize(("kind", "precision"), covering(TRAINING, ["fp32", "bf16"], few=2))
def test_replicas_do_not_raise_the_floor(kind: str, precision: str) -> None:
    """An addition holds two tiles, and other operations hold more."""
    parameters = Parameters(CUT.config, Tiling(CUT.config, CUT.tile), precision)
    programs = [record(kind, parameters, parameters.tiling.rows(8, CUT.length, 1, replicas)) for replicas in (1, 2, 8)]
    assert len({demand_of([program], parameters.states()).floor for program in programs}) == 1
