"""Token and position embeddings of GPT-2: the first layer in forward, the last one in backward. wte is also the head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from asynctile.layers import token_embedding
from asynctile.layers.parameters import Parameter
from asynctile.layers.recording import Grid, Recording
from asynctile.layers.rows import Row
from asynctile.ops import embed_positions, embed_positions_backward, embed_tokens, embed_tokens_backward, fill

WTE, WPE = "wte.weight", "wpe.weight"


def forward(recording: Recording) -> Grid:
    """Compute x (R, C) = wpe[position] + wte[token] for all row tiles, visiting each weight tile once."""
    x = recording.residual("h.0.x")
    embed = _given_positions if recording.positions else _positions
    embed(recording, x)
    token_embedding.forward(recording, recording.parameters.titled(WTE), x)
    return x


def backward(recording: Recording, dx: Grid) -> None:
    """Compute the gradients of wpe, then of wte; a frozen one has none."""
    wpe = recording.parameters.titled(WPE)
    if wpe.trains:
        _positions_backward(recording, wpe, dx)
    token_embedding.backward(recording, recording.parameters.titled(WTE), dx)


def _positions_backward(recording: Recording, wpe: Parameter, dx: Grid) -> None:
    gradients = recording.gradients
    add, by_replica = recording.program.add, recording.rows.by_replica
    for p, (begin, end) in enumerate(wpe.rows):
        for k in recording.columns:
            for rows in by_replica:
                # Positions that no sequence reaches have gradient zero, and AdamW still decays them.
                dweight, _ = gradients.open(wpe, p, k)
                add(fill(dweight, 0.0))
                if recording.positions:
                    for row in rows:
                        add(embed_tokens_backward(recording.positions[row.index], dx[row.index, k], dweight, row=begin))
                else:
                    for row in _standing_in(rows, begin, end):
                        add(embed_positions_backward(
                            dx[row.index, k], dweight, seqs=row.seqs, start=row.start, row=begin))
                gradients.settle(wpe, rows[-1], p, k)


def _positions(recording: Recording, x: Grid) -> None:
    """Compute x = wpe[position], where a row's position follows from its place in the row tile."""
    wpe = recording.parameters.titled(WPE)
    for p, (begin, end) in enumerate(wpe.rows):
        for k in recording.columns:
            for row in _standing_in(recording.rows, begin, end):
                tile, begun = x.open(row, k)
                recording.program.add(embed_positions(
                    wpe.compute[p, k], tile, seqs=row.seqs, start=row.start, row=begin, first=not begun))


def _given_positions(recording: Recording, x: Grid) -> None:
    """Compute x = wpe[position], where positions are an input, as tokens are; 0 for rows without a token."""
    wpe = recording.parameters.titled(WPE)
    for p, (begin, _) in enumerate(wpe.rows):
        for k in recording.columns:
            for row in recording.rows:
                tile, begun = x.open(row, k)
                if not begun:
                    recording.program.add(fill(tile, 0.0))
                recording.program.add(embed_tokens(recording.positions[row.index], wpe.compute[p, k], tile, row=begin))


def _standing_in(rows: Iterable[Row], begin: int, end: int) -> Iterator[Row]:
    """Yield the row tiles with a token at a position in [begin, end)."""
    return (row for row in rows if row.start < end and begin < row.stop)
