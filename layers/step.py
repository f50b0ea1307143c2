"""The order of a step: `record` turns a model of any family and the shape of a batch into a program.

Layer-major: every micro-batch goes through a block before the next block begins, so that its weights are loaded once;
backward runs the same way in reverse, and a block is computed again right before its backward, while they are there.
Nothing is computed here; the engine runs the program. What a block is, and what is before and behind all, is architecture.py.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from asynctile.layers.architecture import Architecture
from asynctile.layers.architectures import architecture_of
from asynctile.layers.parameters import Parameters
from asynctile.layers.recording import Grid, Recording
from asynctile.layers.rows import Rows
from asynctile.program.program import Program
from asynctile.storage.tile import Tile

#: step: every tile is updated as soon as its gradient is complete; step_clipped: all gradients first, then all updates;
#: gradients: they are fetched, nothing is updated; loss, logits: forward only.
KINDS = ("step", "step_clipped", "gradients", "loss", "logits")


def record(
    kind: str, parameters: Parameters, rows: Rows, *, recompute: bool = True, on_host: Collection[Tile] = ()
) -> Program:
    """The program of one step on a batch cut into `rows`: a pure function of its arguments.

    recompute: keep only each block's input and compute the rest again backward; else keep what backward needs. on_host:
    weight tiles whose update runs on the host. The results are equal bit for bit.
    """
    if kind not in KINDS:
        raise ValueError(f"no program is called {kind!r}; choose one of {', '.join(KINDS)}")
    recording, architecture = Recording(kind, parameters, rows, on_host), architecture_of(parameters.config)
    keep = recording.backward and not recompute
    x, kept = _blocks(recording, architecture, keep)
    if kind == "logits":
        architecture.head.logits(recording, x[-1])
    elif kind == "loss":
        architecture.head.losses(recording, x[-1])
    else:
        recording.gradients.closing = True
        dx = architecture.head.forward_backward(recording, x[-1], recompute=recompute)
        _backward(recording, architecture, x, kept, dx)
        if kind == "step_clipped":
            recording.gradients.update_kept()
    return recording.program.finish()


def _blocks(
    recording: Recording, architecture: Architecture, keep: bool
) -> tuple[list[Grid], dict[tuple[int, int], Any]]:
    """Embedding and all blocks forward: the input of each block, the last output, and what is kept of each."""
    x = [architecture.embedding.forward(recording)]
    kept = {}
    for layer in range(recording.config.n_layer):
        out = recording.residual(f"h.{layer + 1}.x")
        for micro_batch in range(recording.rows.micro_batches):
            rows = recording.rows.of(micro_batch)
            whole = architecture.block.forward(recording, rows, layer, x[-1], out)
            if keep:
                kept[layer, micro_batch] = whole
        x.append(out)
    return x, kept


def _backward(
    recording: Recording, architecture: Architecture, x: list[Grid], kept: dict[tuple[int, int], Any], dx: Grid
) -> None:
    """From the gradient of the last block's output to the embeddings."""
    gradients, micro_batches = recording.gradients, recording.rows.micro_batches
    for layer in reversed(range(recording.config.n_layer)):
        for micro_batch in range(micro_batches):
            gradients.closing = micro_batch == micro_batches - 1
            rows = recording.rows.of(micro_batch)
            whole = kept.get((layer, micro_batch)) or architecture.block.again(recording, rows, layer, x[layer])
            architecture.block.backward(recording, rows, layer, whole, dx)
    architecture.embedding.backward(recording, dx)
