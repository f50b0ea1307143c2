"""Recorded programs as lists of operations: complete, small working sets, marks where the host decides.

test_same_programs.py tests that recording is pure.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

from asynctile.layers.gpt2.config import GPT2Config
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import KINDS, parts_of, record
from asynctile.layers.tiling import Tiling
from asynctile.program.operation import NO_NUMBER, Operation
from asynctile.program.program import Fetch, Mark, Program
from asynctile.storage.tile import NEVER, Tile
from tests.counting import calls_of
from tests.layers.families import FAMILIES, NAMES
from tests.layers.shapes import LIGHT, Shape

#: attention_backward_whole: q, k, v, out, dout, dq, dk, dv; besides these, statistics.
LARGE = 8
TRAINING = ("step", "step_clipped", "gradients")


#: Parts that keep their activations: none, the head and a block, all of two blocks.
KEPT = [0, 2, 3]
#: Kinds of programs, with the parts that keep their activations for backward.
PROGRAMS = [(kind, kept) for kind in KINDS for kept in (KEPT if kind in TRAINING else [0])]


@lru_cache(maxsize=2 * len(PROGRAMS))
def recorded(shape: Shape, kind: str, *, kept: int = 0) -> tuple[Parameters, Program]:
    """Return a program and its parameters; the tests of one shape, which run one after another, share them."""
    parameters = shape.parameters()
    rows = parameters.tiling.rows(shape.batch, shape.length, shape.micro_batches)
    return parameters, record(kind, parameters, rows, kept=min(kept, parts_of(shape.config)))


@pytest.fixture(params=[*LIGHT, *NAMES], scope="module")
def shape(request: pytest.FixtureRequest) -> Shape:
    return (LIGHT | FAMILIES)[request.param]


def describe(entry: Operation | Fetch | Mark) -> str:
    if isinstance(entry, Fetch):
        return f"fetch {entry.tile.name} {entry.key} {entry.index}"
    return repr(entry)


@pytest.mark.parametrize(("kind", "kept"), PROGRAMS)
def test_temporaries_are_written_first_and_dead_at_the_end(shape: Shape, kind: str, kept: int) -> None:
    _, program = recorded(shape, kind, kept=kept)
    upcoming: dict[Tile, int] = {}
    for position, entry in enumerate(program.entries):
        touched = dict(uses(entry))
        assert len(touched) == len(uses(entry)), f"an operand twice in {entry}"
        for (tile, how), following in zip(uses(entry), program.next_uses[position], strict=True):
            if tile.persistent:
                continue
            expected = upcoming.get(tile, NEVER)
            assert how == "w" or expected == position, f"{describe(entry)} reads {tile.name} unannounced"
            upcoming[tile] = following
    assert set(upcoming.values()) <= {NEVER}
    assert set(upcoming) == set(program.temporaries)


def uses(entry: Operation | Fetch | Mark) -> list[tuple[Tile, str]]:
    if isinstance(entry, Operation):
        return list(zip(entry.operands, entry.access, strict=True))
    return [(entry.tile, "r")] if isinstance(entry, Fetch) else []


@pytest.mark.parametrize("kind", TRAINING)
def test_no_operation_needs_more_than_a_few_tiles(shape: Shape, kind: str) -> None:
    _, program = recorded(shape, kind)
    edge = max(shape.tile, shape.config.axes["heads"].multiple)
    area = shape.tile * edge
    for operation in program.operations():
        nbytes = [tile.nbytes for tile in operation.operands]
        assert max(nbytes) <= 4 * area or shape.tile < 16, operation
        # Attention keeps two numbers for each row and head. For heads with fewer columns than that, this tile is not small.
        large = [size for size in nbytes if size > 2 * area]
        assert len(large) <= LARGE or shape.config.head_size < 4, operation


def test_default_tile_keeps_the_floor() -> None:
    """No single operation holds more than a tenth of the states, or 512 KiB."""
    for config in (
        GPT2Config(n_layer=4, n_head=4, n_embd=256, block_size=256, vocab_size=256),
        GPT2Config(n_layer=1, n_head=16, n_embd=128, block_size=128, vocab_size=300),
    ):
        parameters = Parameters(config, Tiling(config))
        program = record("step", parameters, parameters.tiling.rows(4, config.block_size))
        floor = max(sum(tile.nbytes for tile in operation.operands) for operation in program.operations())
        assert floor <= max(0.1 * config.states_nbytes, 512 << 10)


@pytest.mark.parametrize("kept", KEPT)
def test_each_tile_is_updated_once_after_its_last_use(shape: Shape, kept: int) -> None:
    parameters, program = recorded(shape, "step", kept=kept)
    updated: set[Tile] = set()
    weights = {tile for p in parameters.values() for tile in p.weights.values()}
    for entry in program.entries:
        touched = uses(entry)
        assert not updated & {tile for tile, _ in touched}, f"{describe(entry)} after the update"
        if isinstance(entry, Operation) and entry.kernel == "adamw":
            updated.add(entry.operands[0])
    assert updated == weights
    last = program.entries[-1]
    assert isinstance(last, Operation)
    assert last.kernel == "adamw"
    assert last.operands[0].name.startswith(("wte.weight", "embed_tokens.weight"))


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("kind", TRAINING)
def test_marks_stand_before_the_first_update(shape: Shape, kind: str, kept: int) -> None:
    _, program = recorded(shape, kind, kept=kept)
    positions: dict[str, list[int]] = {"adamw": [], "sum_squares": [], "cross_entropy": []}
    for position, entry in enumerate(program.entries):
        if isinstance(entry, Operation) and entry.kernel in positions and entry.number != NO_NUMBER:
            positions[entry.kernel].append(position)
    assert program.marks["loss"] > max(positions["cross_entropy"])
    if kind == "gradients":
        assert "update" not in program.marks
        assert not positions["adamw"]
    else:
        assert program.marks["loss"] < program.marks["update"] == min(positions["adamw"]) - 1
    if kind == "step_clipped":
        assert program.marks["update"] > max(positions["sum_squares"])


def test_inputs_are_those_that_the_kind_needs(shape: Shape) -> None:
    rows = len(shape.parameters().tiling.rows(shape.batch, shape.length, shape.micro_batches))
    tokens, targets = ({f"{name}[{r}]" for r in range(rows)} for name in ("tokens", "targets"))
    expected = {
        "logits": tokens, "loss": tokens | targets, "gradients": tokens | targets | {"scale"},
        "step": tokens | targets | {"scale", "hyper"}, "step_clipped": tokens | targets | {"scale", "hyper"},
    }  # fmt: skip
    assert {kind: set(recorded(shape, kind)[1].inputs) for kind in KINDS} == expected


def test_a_layers_weights_are_visited_together() -> None:
    """With recompute a weight is touched in two short spans: forward, and recomputation with backward."""
    _, program = recorded(LIGHT["sequences cut, all ragged"], "step")
    layers = []
    for operation in program.operations():
        names = [tile.name for tile in operation.operands if tile.persistent and tile.name.startswith("h.")]
        layers += [int(name.split(".")[1]) for name in names]
    spans = [layer for i, layer in enumerate(layers) if i == 0 or layer != layers[i - 1]]
    assert spans == [0, 1, 0]


def test_recording_takes_few_calls_per_operation_and_no_more_in_a_larger_model() -> None:
    found = []
    for layers in (1, 4):
        config = GPT2Config(n_layer=layers, n_head=8, n_embd=256, block_size=256, vocab_size=512)
        parameters = Parameters(config, Tiling(config, 128))
        program, calls = calls_of(record, "step", parameters, parameters.tiling.rows(4, 256))
        found.append(calls / len(program))
    assert len(program) > 5000
    assert found[1] < 64  # 43 today, which takes 25 us
    assert found[1] < 1.1 * found[0]
