"""Queries and keys of one group of heads made ready for attention: normalized if the model has norms for them, then rotated.

Without norms they are rotated in place, and backward finds them rotated. With norms they are kept as they were projected, which
the norms' backward needs. Backward then makes them ready again: that costs two passes over a tile, keeping both would cost the
tile's memory, and projecting again would cost products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asynctile import ops
from asynctile.layers.grouped_attention import QKV, Column
from asynctile.layers.llama.rotary_config import RotaryConfig
from asynctile.layers.recording import Grid, Recording
from asynctile.layers.rows import Row

#: The gradients of gains by title: (hs,) by row tile.
Gains = dict[str, Grid]


def _has_norms(recording: Recording, title: str) -> bool:
    """Return whether the attention of this title has norms for queries and keys."""
    return recording.parameters.found(f"{title}.q_norm.weight") is not None


def ready(recording: Recording, rows: Sequence[Row], title: str, projected: QKV) -> QKV:
    """Return the queries and keys of a group as attention reads them, and the values as they are."""
    q = _ready(recording, rows, f"{title}.q_norm", "heads", projected.q)
    k = _ready(recording, rows, f"{title}.k_norm", "key_heads", projected.k)
    return QKV(q, k, projected.v)


def again(recording: Recording, rows: Sequence[Row], title: str, projected: QKV) -> QKV:
    """Return what `ready` did, in backward."""
    return ready(recording, rows, title, projected) if _has_norms(recording, title) else projected


def gains(recording: Recording, title: str) -> Gains:
    """Return grids for the gradients of the gains of one pass, without any tile yet; none if there are no norms."""
    found = (recording.parameters.found(f"{title}.{name}.weight") for name in ("q_norm", "k_norm"))
    return {gain.title: recording.per_vector(f"d{gain.title}", gain.rows) for gain in found if gain is not None}


def backward(
    recording: Recording, rows: Sequence[Row], title: str, projected: QKV, gradients: QKV, dgains: Gains
) -> None:
    """Turn the gradients of a group's queries and keys into those of the projections, in place.

    dgains: the contributions to the gradients of the gains so far, by row tile; those of this group are added.
    """
    _ready_backward(recording, rows, f"{title}.q_norm", "heads", projected.q, gradients.q, dgains)
    _ready_backward(recording, rows, f"{title}.k_norm", "key_heads", projected.k, gradients.k, dgains)


def settle(recording: Recording, rows: Sequence[Row], dgains: Gains) -> None:
    """Add the contributions of all groups to the gradients of the gains, one row tile after another.

    All heads of all groups share a gain. Summed by row tile first, its gradient does not depend on the number of passes. The
    contributions to a frozen gain are left: the operation that computes them computes other gradients too.
    """
    for title, dgain in dgains.items():
        gain = recording.parameters.titled(title)
        if not gain.trains:
            continue
        for row in rows:
            total, begun = recording.gradients.open(gain, 0)
            recording.program.add((ops.add if begun else ops.copy)(dgain[row.index, 0], total))
        recording.gradients.settle(gain, rows[-1], 0)


def _ready(recording: Recording, rows: Sequence[Row], norm: str, axis: str, column: Column) -> Column:
    gain = recording.parameters.found(f"{norm}.weight")
    if gain is not None:
        normed = Column(recording.grid(norm, recording.tiling[axis]), column.number)
        for row in rows:
            recording.program.add(ops.rmsnorm_heads(
                column.at(row.index), gain.compute[0, 0], normed.new(row), **_settings(recording, axis, column)))
        column = normed
    _rotate(recording, rows, axis, column, inverse=False)
    return column


def _ready_backward(
    recording: Recording, rows: Sequence[Row], norm: str, axis: str, column: Column, gradient: Column, dgains: Gains
) -> None:
    _rotate(recording, rows, axis, gradient, inverse=True)
    gain = recording.parameters.found(f"{norm}.weight")
    if gain is None:
        return
    for row in rows:
        dgain, begun = dgains[gain.title].open(row)
        recording.program.add(ops.rmsnorm_heads_backward(
            column.at(row.index), gain.compute[0, 0], gradient.at(row.index), dgain,
            begun=begun, **_settings(recording, axis, column)))  # fmt: skip


def _settings(recording: Recording, axis: str, column: Column) -> dict[str, Any]:
    return {"heads": recording.heads(column.number, axis), "eps": recording.config.norm_epsilon}


def _rotate(recording: Recording, rows: Sequence[Row], axis: str, column: Column, *, inverse: bool) -> None:
    """Rotate each row by its position, in place."""
    config, heads = recording.config, recording.heads(column.number, axis)
    assert isinstance(config, RotaryConfig), "a model without rotary positions has no rotation"
    for row in rows:
        x = column.at(row.index)
        if recording.positions:
            positions = recording.positions[row.index]
            operation = ops.rope_rows(positions, x, heads=heads, inverse=inverse, rotation=config.rotation)
        else:
            operation = ops.rope(
                x, seqs=row.seqs, start=row.start, heads=heads, inverse=inverse, rotation=config.rotation)
        recording.program.add(operation)
