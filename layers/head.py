"""The head, fused with cross-entropy: logits exist only as tiles of the vocabulary.

A strip is a group of row tiles that goes through the vocabulary together. Forward over the vocabulary tiles folds their logits
into statistics and losses, then backward visits them in reverse. With recompute, all row tiles form one strip, and backward
computes the logits again. Otherwise strips are short, and their logits are kept in between. Every sum has the same order in
both cases. A tied weight is also the embedding of tokens, which adds its part of the gradient last (token_embedding.py).

Legend: R rows of a row tile, V rows of a vocabulary tile, v its number. V may exceed the number of tokens in that part
(Split.pitch). The extra rows of the weight are zeros. The extra columns of logits are read by no softmax and have gradient 0.
"""

from __future__ import annotations

from typing import Any

from asynctile.layers.recording import Grid, Recording, RowTiles
from asynctile.ops import cross_entropy, cross_entropy_backward, gemm
from asynctile.program.operation import NO_NUMBER
from asynctile.program.precision import FP32

#: Tokens of a strip whose logits are kept: enough for full tiles, few enough for little memory.
STRIP_TOKENS = 512


def losses(recording: Recording, x: Grid) -> None:
    """Report the summed losses of each row tile as loss[r]."""
    _forward(recording, recording.rows.tiles, x, _stats(recording), keep=False)
    recording.program.mark("loss")


def logits(recording: Recording, x: Grid) -> None:
    """Fetch the logits of the wanted rows as outputs["logits"] of shape (batch length, vocabulary)."""
    vocabulary = recording.tiling["vocab"]
    for v in range(len(vocabulary)):
        tiles = _logits(recording, recording.wanted.tiles, x, v, FP32)
        for row in recording.wanted:
            index = (recording.wanted.part(row), vocabulary.part(v))
            recording.program.fetch(tiles[row.index, v], "logits", index)


def forward_backward(recording: Recording, x: Grid, *, recompute: bool) -> Grid:
    """Report the losses of all row tiles, compute the head's part of its gradient, and return dinp, the gradient of x."""
    stats = _stats(recording)
    dinp = recording.residual("dln_f")
    strips = [recording.rows.tiles] if recompute else recording.rows.strips(STRIP_TOKENS)
    for strip in strips:
        kept = _forward(recording, strip, x, stats, keep=not recompute)
        if strip is strips[-1]:
            recording.program.mark("loss")
        for v in reversed(range(len(recording.tiling["vocab"]))):
            dlogits = kept[v] if kept else _logits(recording, strip, x, v)
            _backward(recording, strip, x, stats, v, dlogits, dinp)
    return dinp


def _stats(recording: Recording) -> Grid:
    return recording.per_row("head.stats", 3)


def _logits(recording: Recording, rows: RowTiles, x: Grid, v: int, dtype: Any = None) -> Grid:
    """Compute logits[r, v] (R, V) = x (R, C) W[v] (V, C)^T, over column tiles. dtype: of logits; None: that of x."""
    weight = recording.parameters.head
    tiles = recording.grid("logits", recording.tiling["vocab"], dtype)
    for k in recording.columns:
        w = recording.weight(weight, (v, k))
        for row in rows:
            tile, begun = tiles.open(row, v)
            operation = recording.product(x[row.index, k], w.of(row), tile, tb=True, accumulate=begun)
            recording.program.add(operation)
    return tiles


def _forward(recording: Recording, rows: RowTiles, x: Grid, stats: Grid, *, keep: bool) -> list[Grid]:
    """Fold the vocabulary into stats; return the logits by vocabulary tile if `keep`."""
    vocabulary = recording.tiling["vocab"]
    final = len(vocabulary) - 1
    kept = []
    for v, (begin, _) in enumerate(vocabulary):
        tiles = _logits(recording, rows, x, v)
        for row in rows:
            last = v == final
            number = recording.program.number(f"loss[{row.index}]") if last else NO_NUMBER
            recording.program.add(cross_entropy(
                tiles[row.index, v], recording.targets[row.index], stats.new(row),
                column=begin, padding=vocabulary.padding(v), first=v == 0, last=last, number=number))  # fmt: skip
        if keep:
            kept.append(tiles)
    return kept


def _backward(
    recording: Recording, rows: RowTiles, x: Grid, stats: Grid, v: int, dlogits: Grid, dinp: Grid
) -> None:
    """Turn logits into their gradient in place; dinp[r, k] (+)= dlogits W, dW[v, k] (+)= dlogits^T x.

    A frozen weight has no dW.
    """
    weight, gradients = recording.parameters.head, recording.gradients
    end = gradients.close if recording.parameters.has_tied_head else gradients.settle
    add = recording.program.add
    vocabulary = recording.tiling["vocab"]
    for row in rows:
        r = row.index
        add(cross_entropy_backward(
            recording.targets[r], stats[r, 0], recording.scale, dlogits[r, v],
            column=vocabulary.offsets[v], padding=vocabulary.padding(v)))  # fmt: skip
    for k in reversed(recording.columns):
        w = recording.weight(weight, (v, k))
        for row in rows:
            r = row.index
            dx, begun = dinp.open(row, k)
            add(gemm(dlogits[r, v], w.of(row), dx, accumulate=begun))
            if weight.trains:
                dweight, begun = gradients.open(weight, v, k)
                add(gemm(dlogits[r, v], x[r, k], dweight, ta=True, accumulate=begun))
                end(weight, row, v, k)
