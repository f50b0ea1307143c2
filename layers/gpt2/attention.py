"""The attention of GPT-2: c_attn projects q, k and v into column tiles one after another, c_proj their result."""

from __future__ import annotations

from collections.abc import Callable

from asynctile.layers.attention import Attention
from asynctile.layers.grouped_attention import QKV, Column
from asynctile.layers.recording import Recording


def _columns(recording: Recording, title: str) -> Callable[[int], QKV]:
    """Return where q, k and v of a group are: the column tiles of one grid are those of q, then k, then v."""
    qkv, groups = recording.grid(f"{title}qkv", recording.tiling["sections"]), len(recording.tiling["heads"])
    return lambda group: QKV(*(Column(qkv, section * groups + group) for section in range(3)))


ATTENTION = Attention(title="h.{}.attn", projections=("c_attn",) * 3, columns=_columns, output="c_proj")
