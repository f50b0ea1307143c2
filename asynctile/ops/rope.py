"""Rotary position embedding (RoPE, arXiv 2104.09864) of queries and keys.

A row at position p turns each pair of columns (i, i + hs / 2) of each head of hs columns by the angle p f_i, as Hugging Face's
rotate_half does: (a, b) becomes (a cos - b sin, b cos + a sin). The angle is the float32 product of p and f_i. Sine and cosine
are those of that float32 number, to 2 units in the last place.

f_i = 1 / theta^(2 i / hs) for i below hs / 2, in the steps of transformers.modeling_rope_utils, because far from the start
one unit in the last place of f_i is a hundredth of a radian. Each step is a float32 operation; only the power is computed in
float64 and then rounded.

`rotation` has five numbers: theta, factor, low, high, original. A factor of 0 leaves f_i as it is. Otherwise f_i is scaled as
LLaMA 3.1 does, with factor, low_freq_factor, high_freq_factor and original_max_position_embeddings of its config.json. With the
wavelength w = (1 / f_i) (2 pi), a wave longer than original / low has f_i / factor, one shorter than original / high keeps f_i,
and one between has (1 - s) f_i / factor + s f_i, where s = ((1 / w) original - low) / (high - low). Here too each step is a
float32 operation, from left to right. What `rotation` and pi alone give is computed in float64 and rounded.
"""

from __future__ import annotations

from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile

#: theta, factor, low, high, original
Rotation = tuple[float, float, float, float, float]


def rope(x: Tile, *, seqs: int, start: int, heads: int, inverse: bool, rotation: Rotation) -> Operation:
    """Rotate x (R, g hs), T, in place. Row r is at position start + r mod (R / seqs).

    `inverse` rotates back, which turns the gradient of the result into that of x.
    Kernel: rope(x, seqs, start, heads, inverse, theta, factor, low, high, original).
    """
    _check("rope", x, heads)
    return Operation("rope", (x,), "u", (seqs, start, heads, inverse, *map(float, rotation)))


def rope_rows(positions: Tile, x: Tile, *, heads: int, inverse: bool = False, rotation: Rotation) -> Operation:
    """Rotate x (R, g hs), T, in place, each row by its own position in positions (R,) int32; with `inverse`, back.

    A row whose position is negative keeps its bits. Equal positions give the bits of `rope`.
    Kernel: rope_rows(positions, x, heads, inverse, theta, factor, low, high, original).
    """
    _check("rope_rows", x, heads)
    expect("rope_rows", positions, x.shape[:1])
    return Operation("rope_rows", (positions, x), "ru", (heads, inverse, *map(float, rotation)))


def _check(verb: str, x: Tile, heads: int) -> None:
    if x.shape[1] % (2 * heads):
        raise ValueError(f"{verb}: {x.name} has {x.shape[1]} columns, expected an even number for each of {heads} heads")
