"""Launcher of attention_page.cu. The contract is in asynctile/ops/attention_page.py."""

from __future__ import annotations

import numpy as np

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import BLOCK, WARPS, suffix


def attention_page(
    on: Context, q: Array, k: Array, v: Array, page: Array, rows: Array, pages: Array, out: Array, stats: Array,
    number: int, heads: int, first: bool, last: bool,
) -> None:  # fmt: skip
    """Store the new tokens of a page, then fold the page into out and stats. Each block computes one head of keys."""
    (count, columns), places = q.shape, page.shape[0] // 2
    hs = columns // heads
    key_heads = k.shape[1] // hs
    sizes = count, places, number, heads, key_heads, hs, first, last
    shared = WARPS * places * np.dtype(np.float32).itemsize
    operands = q, k, v, page, rows, pages, out, stats
    on.launch(f"attention_page_{suffix(q)}", key_heads, BLOCK, *operands, *sizes, shared=shared)
