"""The order of a step: `record` turns a model of any family and the shape of a batch into a program.

The order is layer-major. Every pass of row tiles goes through a block before the next block begins, so that its weights are
loaded once. Backward does the same in reverse, down to the lowest block that trains anything. A block whose activations were
not kept is recomputed right before its backward, while its weights are there. Nothing is computed here; the engine runs the
program. architecture.py defines the block and what comes before and after all blocks. arrangement.py chooses the passes, and
how many parts keep their activations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from asynctile.layers.architecture import Architecture
from asynctile.layers.architectures import architecture_of
from asynctile.layers.carriers import carried, carried_forward
from asynctile.layers.config import Config
from asynctile.layers.parameters import Parameters
from asynctile.layers.recording import Grid, Recording
from asynctile.layers.rows import Rows
from asynctile.program.program import Program
from asynctile.storage.tile import Tile

#: The kinds of programs. step: update every tile as soon as its gradient is complete. step_clipped: first all gradients, then
#: all updates. gradients: fetch gradients, update nothing. loss, logits: forward only.
KINDS = ("step", "step_clipped", "gradients", "loss", "logits")


def parts_of(config: Config) -> int:
    """Return how many parts of a step have activations that can be kept: its blocks and the head."""
    return config.n_layer + 1


def record(
    kind: str, parameters: Parameters, rows: Rows, *, kept: int = 0, on_host: Collection[Tile] = (),
    carriers: Sequence[int] = (), nodes: int = 1,
) -> Program:  # fmt: skip
    """Return the program of one step on a batch cut into `rows`, a pure function of its arguments.

    kept: how many parts keep what backward needs, the head first, then the blocks from the last to the first. Backward visits
    parts in that order, so each part holds its activations as briefly as possible. The other blocks keep only their input, and
    backward recomputes the rest. on_host: the weight tiles whose update runs on the host. carriers: the device of each replica,
    in a forward pass, of each group of row tiles; none: one device carries all. nodes: that share these devices. Results are
    bitwise equal for every `kept`, `on_host`, `carriers`, `nodes` and number of passes.
    """
    recording, begins = _recorded(kind, parameters, rows, kept, on_host, carriers)
    if not carriers:
        return recording.program.finish()
    return carried(recording, carriers, begins, nodes) if recording.backward else carried_forward(recording, carriers)


def record_parts(kind: str, parameters: Parameters, rows: Rows, *, kept: int = 0) -> tuple[Program, list[int]]:
    """Return the program of `record` on one device, and the positions at which its stretches begin.

    Here a stretch is the entries of one part: each block, the head, each block's backward pass, and the rest. The entries
    before the first stretch belong to the embedding.
    """
    recording, begins = _recorded(kind, parameters, rows, kept)
    return recording.program.finish(), begins


def _recorded(
    kind: str, parameters: Parameters, rows: Rows, kept: int, on_host: Collection[Tile] = (), carriers: Sequence[int] = ()
) -> tuple[Recording, list[int]]:
    """Return a recording whose program is not finished, and where its parts begin."""
    parts = parts_of(parameters.config)
    recording, architecture = Recording(kind, parameters, rows, on_host, carriers), architecture_of(parameters.config)
    section = recording.program.section
    begins: list[int] = []
    section("forward", "embedding")
    x, whole = _blocks(recording, architecture, range(parts - kept, parts - 1), begins)
    section("forward" if kind in ("logits", "loss") else "head", "head")
    if kind == "logits":
        architecture.head.logits(recording, x[-1])
    elif kind == "loss":
        architecture.head.losses(recording, x[-1])
    else:
        begins.append(len(recording.program))
        dx = architecture.head.forward_backward(recording, x[-1], recompute=not kept)
        _backward(recording, architecture, x, whole, dx, begins)
        if kind == "step_clipped":
            section("update", "all weights")
            recording.gradients.update_kept()
    return recording, begins


def _blocks(
    recording: Recording, architecture: Architecture, keeping: range, begins: list[int]
) -> tuple[list[Grid], dict[tuple[int, int], Any]]:
    """Record the embedding and all blocks forward; return each block's input and the last output, and the kept activations."""
    x = [architecture.embedding.forward(recording)]
    kept = {}
    for layer in range(recording.config.n_layer):
        begins.append(len(recording.program))
        out = recording.residual(f"h.{layer + 1}.x")
        for number, rows in enumerate(recording.rows.passes):
            recording.program.section("forward", _named(layer, number, recording))
            whole = architecture.block.forward(recording, rows, layer, x[-1], out)
            if layer in keeping:
                kept[layer, number] = whole
        x.append(out)
    return x, kept


def _backward(
    recording: Recording,
    architecture: Architecture,
    x: list[Grid],
    kept: dict[tuple[int, int], Any],
    dx: Grid,
    begins: list[int],
) -> None:
    """Record the way from the gradient of the last block's output back to the embeddings, or as far down as anything trains."""
    section = recording.program.section
    phase = "backward and update" if recording.program.name == "step" else "backward"
    lowest = recording.parameters.tuning.lowest_block(recording.config)
    for layer in reversed(range(recording.config.n_layer)):
        begins.append(len(recording.program))
        if layer < lowest:
            continue
        for number, rows in enumerate(recording.rows.passes):
            section(phase, _named(layer, number, recording))
            whole = kept.get((layer, number)) or architecture.block.again(recording, rows, layer, x[layer])
            architecture.block.backward(recording, rows, layer, whole, dx)
    begins.append(len(recording.program))
    section(phase, "embedding")
    architecture.embedding.backward(recording, dx)


def _named(layer: int, number: int, recording: Recording) -> str:
    """Return the name of a block, with the pass that goes through it if there are several."""
    return f"h.{layer}" + (f" rows {number + 1} of {len(recording.rows.passes)}" if len(recording.rows.passes) > 1 else "")
