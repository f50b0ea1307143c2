"""The kernels of CUDA devices: `KERNELS[operation.kernel](context, *arrays, *params[, number])` enqueues one operation.

Each family has a .cu file with its kernels and a .py file with their launchers, which choose name, grid and block. Importing
needs neither a driver nor a toolkit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from asynctile.kernels.cuda.adamw import adamw, adamw_bf16, sum_squares
from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.attention import (
    attention,
    attention_backward,
    attention_backward_whole,
    attention_delta,
    attention_packed,
    attention_packed_backward,
)
from asynctile.kernels.cuda.attention_page import attention_page
from asynctile.kernels.cuda.context import SCRATCH, Context, Packed, pack
from asynctile.kernels.cuda.cross_entropy import cross_entropy, cross_entropy_backward
from asynctile.kernels.cuda.elementwise import add, column_sums, column_sums_copy, copy, fill, scale
from asynctile.kernels.cuda.embedding import embed_positions, embed_positions_backward, embed_tokens, embed_tokens_backward
from asynctile.kernels.cuda.gelu import gelu, gelu_and_backward
from asynctile.kernels.cuda.gemm import gemm, gemm_bias, gemm_bias_onto, gemm_onto
from asynctile.kernels.cuda.gemm_rows import gemm_rows, gemm_rows_bias, gemm_rows_bias_onto, gemm_rows_onto
from asynctile.kernels.cuda.layernorm import (
    layernorm,
    layernorm_backward,
    layernorm_gradients,
    layernorm_stats,
    layernorm_sums,
    layernorm_whole,
    layernorm_whole_backward,
)
from asynctile.kernels.cuda.rmsnorm import (
    rmsnorm,
    rmsnorm_backward,
    rmsnorm_gradients,
    rmsnorm_heads,
    rmsnorm_heads_backward,
    rmsnorm_stats,
    rmsnorm_sums,
    rmsnorm_whole,
    rmsnorm_whole_backward,
)
from asynctile.kernels.cuda.rope import rope, rope_rows
from asynctile.kernels.cuda.swiglu import swiglu, swiglu_and_backward

__all__ = ["KERNELS", "SCRATCH", "Array", "Context", "Packed", "options", "pack", "parts", "source"]

#: All and only the launchers that devices call, under the names that operations use.
KERNELS: dict[str, Callable[..., None]] = {
    launcher.__name__: launcher
    for launcher in (
        add, adamw, adamw_bf16, attention, attention_backward, attention_backward_whole, attention_delta, attention_packed,
        attention_packed_backward, attention_page, column_sums, column_sums_copy, copy, cross_entropy,
        cross_entropy_backward, embed_positions, embed_positions_backward, embed_tokens, embed_tokens_backward, fill, gelu,
        gelu_and_backward, gemm, gemm_bias, gemm_bias_onto, gemm_onto, gemm_rows, gemm_rows_bias,
        gemm_rows_bias_onto, gemm_rows_onto, layernorm, layernorm_backward, layernorm_gradients, layernorm_stats,
        layernorm_sums, layernorm_whole, layernorm_whole_backward, rmsnorm, rmsnorm_backward, rmsnorm_gradients,
        rmsnorm_heads, rmsnorm_heads_backward, rmsnorm_stats, rmsnorm_sums, rmsnorm_whole, rmsnorm_whole_backward, rope,
        rope_rows, scale, sum_squares, swiglu, swiglu_and_backward,
    )
}  # fmt: skip


def parts() -> list[Path]:
    """Return the files of the translation unit, in order."""
    folder = Path(__file__).parent
    headers = [folder / name for name in ("common.cuh", "rows.cuh", "norm.cuh", "mma.cuh")]
    return [path for path in headers if path.exists()] + sorted(folder.glob("*.cu"))


def source() -> str:
    """Return all kernels as one translation unit for NVRTC, in C++17, with the files' line numbers."""
    return "".join(f'#line 1 "{path.name}"\n{path.read_text()}\n' for path in parts())


def options(target: str) -> tuple[str, ...]:
    """Return NVRTC's options for a target such as "sm_90".

    They keep subnormal numbers and round division and square root once, so that AdamW gives equal bits on CPU and GPU.
    """
    return ("--std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", f"--gpu-architecture={target}")
