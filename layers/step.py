"""The order of a step: `record` turns a model of any family and the shape of a batch into a program.

Layer-major: every pass of row tiles goes through a block before the next block begins, so that its weights are loaded once;
backward runs the same way in reverse, and a block is computed again right before its backward, while they are there, unless its
activations were kept. Nothing is computed here; the engine runs the program. What a block is, and what is before and behind
all, is architecture.py; how many keep them, and in which passes rows go, is chosen by arrangement.py.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from asynctile.layers.architecture import Architecture
from asynctile.layers.architectures import architecture_of
from asynctile.layers.config import Config
from asynctile.layers.parameters import Parameters
from asynctile.layers.recording import Grid, Recording
from asynctile.layers.rows import Rows
from asynctile.program.program import Program
from asynctile.storage.tile import Tile

#: step: every tile is updated as soon as its gradient is complete; step_clipped: all gradients first, then all updates;
#: gradients: they are fetched, nothing is updated; loss, logits: forward only.
KINDS = ("step", "step_clipped", "gradients", "loss", "logits")


def parts_of(config: Config) -> int:
    """How many parts of a step have activations that may be kept: its blocks, and the head behind them."""
    return config.n_layer + 1


def record(
    kind: str, parameters: Parameters, rows: Rows, *, kept: int = 0, on_host: Collection[Tile] = ()
) -> Program:
    """The program of one step on a batch cut into `rows`: a pure function of its arguments.

    kept: of how many parts, counted from the last, what backward needs is kept: the head first, then the blocks from the last
    to the first. Backward comes to them in that order, so what is kept longest is kept by few. Of the other blocks only the
    input is kept and the rest computed again. on_host: weight tiles whose update runs on the host. Whatever both are, and in
    whichever passes the rows go, results are equal bit for bit.
    """
    return record_parts(kind, parameters, rows, kept=kept, on_host=on_host)[0]


def record_parts(
    kind: str, parameters: Parameters, rows: Rows, *, kept: int = 0, on_host: Collection[Tile] = ()
) -> tuple[Program, list[int]]:
    """The same, and where its stretches begin: each block, the head, each block's backward pass, and what is behind them.

    The entries before all these are the embedding's.
    """
    if kind not in KINDS:
        raise ValueError(f"no program is called {kind!r}; choose one of {', '.join(KINDS)}")
    parts = parts_of(parameters.config)
    if isinstance(kept, bool) or not 0 <= kept <= parts:
        raise ValueError(f"kept is {kept!r}, expected a whole number from 0 to {parts}, the parts of this model's step")
    recording, architecture = Recording(kind, parameters, rows, on_host), architecture_of(parameters.config)
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
        recording.gradients.closing = True
        begins.append(len(recording.program))
        dx = architecture.head.forward_backward(recording, x[-1], recompute=not kept)
        _backward(recording, architecture, x, whole, dx, begins)
        if kind == "step_clipped":
            section("update", "all weights")
            recording.gradients.update_kept()
    return recording.program.finish(), begins


def _blocks(
    recording: Recording, architecture: Architecture, keeping: range, begins: list[int]
) -> tuple[list[Grid], dict[tuple[int, int], Any]]:
    """Embedding and all blocks forward: the input of each block, the last output, and what is kept of those in `keeping`."""
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
    """From the gradient of the last block's output to the embeddings."""
    gradients, passes, section = recording.gradients, recording.rows.passes, recording.program.section
    phase = "backward and update" if recording.program.name == "step" else "backward"
    for layer in reversed(range(recording.config.n_layer)):
        begins.append(len(recording.program))
        for number, rows in enumerate(passes):
            section(phase, _named(layer, number, recording))
            gradients.closing = rows is passes[-1]
            whole = kept.get((layer, number)) or architecture.block.again(recording, rows, layer, x[layer])
            architecture.block.backward(recording, rows, layer, whole, dx)
    begins.append(len(recording.program))
    section(phase, "embedding")
    architecture.embedding.backward(recording, dx)


def _named(layer: int, number: int, recording: Recording) -> str:
    """A block, and which of the passes of rows goes through it, if they are several."""
    return f"h.{layer}" + (f" rows {number + 1} of {len(recording.rows.passes)}" if len(recording.rows.passes) > 1 else "")
