"""The attention of LLaMA: q_proj, k_proj and v_proj project into grids of their own, o_proj projects the result.

rotation.py makes queries and keys ready.
"""

from __future__ import annotations

from collections.abc import Callable

from asynctile.layers.attention import Attention
from asynctile.layers.grouped_attention import QKV, Column
from asynctile.layers.llama import rotation
from asynctile.layers.recording import Recording


def _columns(recording: Recording, title: str) -> Callable[[int], QKV]:
    heads, keys = recording.tiling["heads"], recording.tiling["key_heads"]
    grids = [recording.grid(f"{title}{name}", split) for name, split in zip("qkv", (heads, keys, keys), strict=True)]
    return lambda group: QKV(*(Column(grid, group) for grid in grids))


ATTENTION = Attention(
    title="layers.{}.self_attn", projections=("q_proj", "k_proj", "v_proj"), columns=_columns, output="o_proj",
    preparation=rotation,
)  # fmt: skip
