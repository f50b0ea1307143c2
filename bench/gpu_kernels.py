"""How close do the kernels come to this GPU's limits, and to PyTorch's kernels?

    python bench/gpu_kernels.py [--device cuda:0] [--sequences 16] [--length 1024] [--width 1600] [--heads 25] [--key-heads 5]
                                [--vocab 50257] [--write]

Shapes of GPT-2 XL by default; the kernels that only LLaMA has run on the same rows. Each kernel runs as a program of the engine
that repeats the same operations, with all tiles on the device. Roofline: FLOPs over the measured GEMM rate, or the fewest bytes
(each input read once, each output written once) over the measured copy rate, whichever takes longer. PyTorch does the same
work, eager, in the same process; the note of attention also has PyTorch with cuDNN. A causal attention counts half of the
square; its backward pass counts five products, including the recomputed forward ones.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gpu_common import engine_of, options_of
from gpu_peaks import Place, copy_rate, cupy_gemm_rate, dtype_of, free, gemm_rate
from gpu_record import Section
from gpu_rows import KERNELS
from gpu_torch import by_cudnn
from torch.nn import functional

from asynctile import Engine, ops
from asynctile.layers.config import Axis
from asynctile.program.grain import COARSE
from asynctile.program.needs import demand_of
from asynctile.program.operation import NO_NUMBER, Operation
from asynctile.program.program import Program
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile

#: Approximate seconds of a program, long enough that its start and end do not count.
PROGRAM_S = 0.1
#: RoPE as LLaMA 3 has it: theta, and no scaling of frequencies.
ROTATION = (500000.0, 0.0, 0.0, 0.0, 0.0)


class Shapes:
    """The sizes of the options, and the dtype of activations: bf16 bits as uint16, or float32."""

    def __init__(self, options: Namespace) -> None:
        self.seqs, self.length, self.width = options.sequences, options.length, options.width
        self.heads, self.key_heads, self.vocab = options.heads, options.key_heads, options.vocab
        self.rows = self.seqs * self.length
        self.precision = options.precision
        self.dtype = np.dtype(np.uint16 if self.precision == "bf16" else np.float32)
        self.vocabulary = Axis(self.vocab, padded=True).split(4 * self.width, COARSE.pitch)


def tile(name: str, *shape: int, dtype: Any = np.float32) -> Tile:
    return Tile(name, shape, dtype, persistent=True)


def numbers_for(tile: Tile) -> np.ndarray:
    """Return random contents of a tile: normal numbers, their squares for second moments, token ids for int32."""
    random, size = np.random.default_rng(len(tile.name)), int(np.prod(tile.shape))
    if tile.dtype.kind == "i":
        return random.integers(0, 500, tile.shape).astype(tile.dtype)
    drawn = random.standard_normal(min(size, 1 << 22), np.float32)
    drawn = np.square(drawn) if tile.name in ("v", "stats", "hyper") else drawn
    if tile.dtype == np.uint16:
        drawn = (drawn.view(np.uint32) >> 16).astype(np.uint16)
    return np.resize(drawn, tile.shape)


async def ours_s(engine: Engine, operations: Sequence[Operation]) -> float:
    """Return the seconds of `operations`, one after another, measured in a program that repeats them."""
    tiles = list({operand: None for operation in operations for operand in operation.operands})
    await runtime_of(engine).reserve(demand_of([], tiles))
    await runtime_of(engine).store((tile, numbers_for(tile)) for tile in tiles)

    def program(repeats: int) -> Program:
        made = Program("bench")
        for operation in [*operations] * repeats:
            made.add(operation)
        return made.finish()

    async def seconds(work: Program) -> float:
        async def job() -> float:
            async with runtime_of(engine).exclusive():
                start = time.perf_counter()
                await (await runtime_of(engine).start(work, demand_of([work], tiles), {})).finish()
                return time.perf_counter() - start

        return await runtime_of(engine).call(job())

    try:
        await seconds(program(2))  # loads the tiles
        repeats = max(2, min(1000, int(PROGRAM_S / (await seconds(program(4)) / 4))))
        whole = program(repeats)
        spent = [await seconds(whole) for _ in range(5)]  # one graph from the third run on
        return statistics.median(spent[2:]) / repeats
    finally:
        await runtime_of(engine).release(tiles)


def gemm(shapes: Shapes, n: int, k: int, ta: bool = False) -> list[Operation]:
    """Return (rows, k) by (k, n), or with ta the gradient of weights: (k, rows) by (rows, n), accumulated in float32."""
    a = tile("a", shapes.rows, k, dtype=shapes.dtype)
    b = tile("b", *((shapes.rows, n) if ta else (k, n)), dtype=shapes.dtype)
    c = tile("c", k, n) if ta else tile("c", shapes.rows, n, dtype=shapes.dtype)
    return [Operation("gemm", (a, b, c), "rru" if ta else "rrw", (ta, False, ta))]


def attention(shapes: Shapes, key_heads: int, *, backward: bool) -> list[Operation]:
    narrow = shapes.width // shapes.heads * key_heads
    wide = {name: tile(name, shapes.rows, narrow if name in ("k", "value", "dk", "dv") else shapes.width, dtype=shapes.dtype)
            for name in ("q", "k", "value", "out", "dout", "dq", "dk", "dv")}  # fmt: skip
    stats = tile("lse and sums", 2 * shapes.heads, shapes.rows)
    whole = (shapes.seqs, shapes.heads, True, True)
    forward = Operation("attention", (wide["q"], wide["k"], wide["value"], wide["out"], stats), "rrrww", whole)
    if not backward:
        return [forward]
    delta = tile("delta", shapes.heads, shapes.rows)
    sources = (wide["q"], wide["k"], wide["value"], wide["out"], wide["dout"], stats)
    results = (delta, wide["dq"], wide["dk"], wide["dv"])
    return [Operation("attention_backward_whole", (*sources, *results), "rrrrrrwwww", (shapes.seqs, shapes.heads))]


def cross_entropy(shapes: Shapes) -> list[Operation]:
    """Return loss and gradient over the vocabulary, tile by tile, cut and padded as the model cuts its head."""
    targets, stats, scale = tile("t", shapes.rows, dtype=np.int32), tile("sums", shapes.rows, 3), tile("scale", 1)
    cut, last = shapes.vocabulary, len(shapes.vocabulary) - 1
    parts = [tile(f"logits {v}", shapes.rows, cut.size(v), dtype=shapes.dtype) for v in range(len(cut))]
    return [
        *(ops.cross_entropy(part, targets, stats, column=cut.offsets[v], padding=cut.padding(v), first=v == 0, last=v == last)
          for v, part in enumerate(parts)),
        *(ops.cross_entropy_backward(targets, stats, scale, part, column=cut.offsets[v], padding=cut.padding(v))
          for v, part in enumerate(parts)),
    ]  # fmt: skip


def layernorm(shapes: Shapes) -> list[Operation]:
    x, stats = tile("x", shapes.rows, shapes.width), tile("stats", shapes.rows, 2)
    gain, bias = tile("gain", shapes.width), tile("bias", shapes.width)
    y = tile("y", shapes.rows, shapes.width, dtype=shapes.dtype)
    return [Operation("layernorm_whole", (x, gain, bias, stats, y), "rrrww", (1e-5,))]


def layernorm_backward(shapes: Shapes) -> list[Operation]:
    """Return the backward pass. It adds to the gradient of the residual stream, and includes those of gain and bias."""
    dinp, x, dx = (tile(name, shapes.rows, shapes.width) for name in ("dinp", "x", "dx"))
    stats = tile("stats", shapes.rows, 2)
    gain, dgain, dbias = (tile(name, shapes.width) for name in ("gain", "dgain", "dbias"))
    operands = (dinp, x, stats, gain, dx, dgain, dbias)
    return [Operation("layernorm_whole_backward", operands, "rrrruww", (True, False))]


def rmsnorm(shapes: Shapes) -> list[Operation]:
    x, stats, gain = tile("x", shapes.rows, shapes.width), tile("stats", shapes.rows, 1), tile("gain", shapes.width)
    return [ops.rmsnorm_whole(x, gain, stats, tile("y", shapes.rows, shapes.width, dtype=shapes.dtype), eps=1e-5)]


def rmsnorm_backward(shapes: Shapes) -> list[Operation]:
    """Return the backward pass, as that of layernorm."""
    dinp, x, dx = (tile(name, shapes.rows, shapes.width) for name in ("dinp", "x", "dx"))
    stats, gain, dgain = tile("stats", shapes.rows, 1), tile("gain", shapes.width), tile("dgain", shapes.width)
    return [ops.rmsnorm_whole_backward(dinp, x, stats, gain, dx, dgain, accumulate=True, begun=False)]


def rmsnorm_heads(shapes: Shapes, *, backward: bool) -> list[Operation]:
    """Return the norm of each head of queries. The backward pass computes the statistics again."""
    x, y = (tile(name, shapes.rows, shapes.width, dtype=shapes.dtype) for name in ("x", "y"))
    gain, dgain = (tile(name, shapes.width // shapes.heads) for name in ("gain", "dgain"))
    if not backward:
        return [ops.rmsnorm_heads(x, gain, y, heads=shapes.heads, eps=1e-5)]
    return [ops.rmsnorm_heads_backward(x, gain, y, dgain, heads=shapes.heads, eps=1e-5, begun=False)]


def rope(shapes: Shapes) -> list[Operation]:
    x = tile("x", shapes.rows, shapes.width, dtype=shapes.dtype)
    return [ops.rope(x, seqs=shapes.seqs, start=0, heads=shapes.heads, inverse=False, rotation=ROTATION)]


def swiglu(shapes: Shapes, *, backward: bool) -> list[Operation]:
    """Return SwiGLU. The backward pass computes the output again."""
    gate, up, y, grad, dgate = (tile(name, shapes.rows, 4 * shapes.width, dtype=shapes.dtype)
                                for name in ("gate", "up", "y", "grad", "dgate"))  # fmt: skip
    return [ops.swiglu_and_backward(gate, up, y, grad, dgate) if backward else ops.swiglu(gate, up, y)]


def gelu(shapes: Shapes, *, backward: bool) -> list[Operation]:
    """Return GELU. The backward pass computes the output again and includes the gradient of the bias before it."""
    x, y = (tile(name, shapes.rows, 4 * shapes.width, dtype=shapes.dtype) for name in ("x", "y"))
    if not backward:
        return [Operation("gelu", (x, y), "rw")]
    grad, dbias = tile("grad", shapes.rows, 4 * shapes.width, dtype=shapes.dtype), tile("dbias", 4 * shapes.width)
    return [Operation("gelu_and_backward", (x, y, grad, dbias), "rwuw", (False,))]


def adamw(shapes: Shapes) -> list[Operation]:
    """Return the update of all weights of a block's MLP and attention, in matrices as large as one of their tiles."""
    w, g, m, v = (tile(name, shapes.width, 4 * shapes.width) for name in ("w", "g", "m", "v"))
    hyper = tile("hyper", 9)
    if shapes.precision != "bf16":
        return [Operation("adamw", (w, g, m, v, hyper), "uruur", (True, 0), number=NO_NUMBER)]
    copy = tile("compute", shapes.width, 4 * shapes.width, dtype=np.uint16)
    return [Operation("adamw_bf16", (w, g, m, v, hyper, copy), "uruurw", (True, 0), number=NO_NUMBER)]


class Torch:
    """The same work by PyTorch on tensors of the same shapes."""

    def __init__(self, place: Place, shapes: Shapes) -> None:
        self.place = place
        self.shapes = shapes
        self.dtype = dtype_of(shapes.precision)
        torch.backends.cuda.matmul.allow_tf32 = shapes.precision != "fp32"

    def draw(self, *shape: int, dtype: torch.dtype | None = None, grad: bool = False) -> torch.Tensor:
        return self.place.random(*shape, dtype=dtype or self.dtype).requires_grad_(grad)

    def gemm(self, n: int, k: int, ta: bool = False) -> float:
        a, b = self.draw(self.shapes.rows, k), self.draw(*((self.shapes.rows, n) if ta else (k, n)))
        return self.place.seconds(lambda: torch.mm(a.T if ta else a, b))

    def attention(self, key_heads: int, *, backward: bool) -> float:
        s = self.shapes
        q, k, v = (self.draw(s.seqs, heads, s.length, s.width // s.heads, grad=backward)
                   for heads in (s.heads, key_heads, key_heads))  # fmt: skip
        grouped = {"enable_gqa": True} if key_heads != s.heads else {}  # older versions do not know it
        run = lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)  # noqa: E731
        if not backward:
            return self.place.seconds(run)
        return self._backward(run(), q, k, v)

    def with_cudnn(self, attention: Callable[[], float]) -> str:
        """Return the time of `attention` with cuDNN, or why there is none, in words."""
        try:
            with by_cudnn(self.place):
                return f"PyTorch's cuDNN attention: {attention() * 1e6:,.0f} us"
        except RuntimeError as error:
            return f"PyTorch has no cuDNN attention: {(str(error).splitlines() or [''])[0][:100]}"

    def cross_entropy(self) -> float:
        logits = self.draw(self.shapes.rows, self.shapes.vocab, grad=True)
        targets = torch.randint(0, self.shapes.vocab, (self.shapes.rows,), device=self.place.where)
        return self.place.seconds(lambda: torch.autograd.grad(functional.cross_entropy(logits, targets), logits), 5)

    def layernorm(self, *, backward: bool) -> float:
        x = self.draw(self.shapes.rows, self.shapes.width, dtype=torch.float32, grad=backward)
        gain, bias = (self.draw(self.shapes.width, dtype=torch.float32, grad=backward) for _ in range(2))
        run = lambda: functional.layer_norm(x, (self.shapes.width,), gain, bias)  # noqa: E731
        return self._backward(run(), x, gain, bias) if backward else self.place.seconds(run)

    def rmsnorm(self, *, backward: bool, heads: int = 1) -> float:
        """Return the seconds of the norm of rows, or in the precision of activations, of each of several heads."""
        width, dtype = self.shapes.width // heads, torch.float32 if heads == 1 else self.dtype
        x = self.draw(self.shapes.rows, heads, width, dtype=dtype, grad=backward)
        gain = self.draw(width, dtype=dtype, grad=backward)
        run = lambda: functional.rms_norm(x, (width,), gain, 1e-5)  # noqa: E731
        return self._backward(run(), x, gain) if backward else self.place.seconds(run)

    def rope(self) -> float:
        """Return the seconds of transformers' way, with the sines and cosines made before."""
        s = self.shapes
        x = self.draw(s.seqs, s.heads, s.length, s.width // s.heads)
        half = x.shape[-1] // 2
        angles = torch.outer(torch.arange(s.length), ROTATION[0] ** (-torch.arange(half) / half)).repeat(1, 2)
        cosines, sines = (values.to(x) for values in (angles.cos(), angles.sin()))
        return self.place.seconds(lambda: x * cosines + torch.cat((-x[..., half:], x[..., :half]), -1) * sines)

    def swiglu(self, *, backward: bool) -> float:
        gate, up = (self.draw(self.shapes.rows, 4 * self.shapes.width, grad=backward) for _ in range(2))
        run = lambda: functional.silu(gate) * up  # noqa: E731
        return self._backward(run(), gate, up) if backward else self.place.seconds(run)

    def gelu(self, *, backward: bool) -> float:
        x = self.draw(self.shapes.rows, 4 * self.shapes.width, grad=backward)
        if backward:
            bias = self.draw(4 * self.shapes.width, grad=True)
            return self._backward(functional.gelu(x + bias, approximate="tanh"), x, bias)
        return self.place.seconds(lambda: functional.gelu(x, approximate="tanh"))

    def adamw(self) -> float:
        weight = self.draw(self.shapes.width, 4 * self.shapes.width, dtype=torch.float32, grad=True)
        weight.grad = self.draw(*weight.shape, dtype=torch.float32)
        return self.place.seconds(torch.optim.AdamW([weight], lr=1e-4, fused=True).step)

    def _backward(self, out: torch.Tensor, *inputs: torch.Tensor) -> float:
        grad = self.draw(*out.shape, dtype=out.dtype)
        return self.place.seconds(lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True))


Work = tuple[str, list[Operation], Callable[[], float], float, float]


def works(shapes: Shapes, torch_side: Torch) -> list[Work]:
    """Return (name, operations, PyTorch's seconds, FLOPs, fewest bytes) of each kernel."""
    rows, d, item = shapes.rows, shapes.width, shapes.dtype.itemsize
    square = 2.0 * rows * shapes.length * d / 2  # one product of a causal attention
    wide, long, weights = rows * d, rows * 4 * d, d * 4 * d
    all_heads, few = shapes.heads, shapes.key_heads
    narrow = wide // all_heads * few
    adamw_bytes = (28 + (2 if shapes.precision == "bf16" else 0)) * weights
    t = torch_side
    return [
        ("AdamW", adamw(shapes), t.adamw, 0, adamw_bytes),
        ("GEMM, MLP forward", gemm(shapes, 4 * d, d), lambda: t.gemm(4 * d, d), 2.0 * rows * weights,
         item * (wide + long + weights)),
        ("GEMM, its gradient", gemm(shapes, 4 * d, d, True), lambda: t.gemm(4 * d, d, True), 2.0 * rows * weights,
         item * (wide + long) + 4 * weights),
        ("attention", attention(shapes, all_heads, backward=False), lambda: t.attention(all_heads, backward=False), 2 * square,
         4 * item * wide),
        ("attention backward", attention(shapes, all_heads, backward=True), lambda: t.attention(all_heads, backward=True),
         5 * square, 8 * item * wide),
        ("attention, grouped heads", attention(shapes, few, backward=False), lambda: t.attention(few, backward=False),
         2 * square, item * (2 * wide + 2 * narrow)),
        ("attention, grouped heads, backward", attention(shapes, few, backward=True), lambda: t.attention(few, backward=True),
         5 * square, item * (4 * wide + 4 * narrow)),
        ("cross-entropy and gradient", cross_entropy(shapes), t.cross_entropy, 0, 3 * item * rows * shapes.vocab),
        ("layernorm", layernorm(shapes), lambda: t.layernorm(backward=False), 0, (4 + item) * wide),
        ("layernorm backward", layernorm_backward(shapes), lambda: t.layernorm(backward=True), 0, 16 * wide),
        ("GELU", gelu(shapes, backward=False), lambda: t.gelu(backward=False), 0, 2 * item * long),
        ("GELU backward", gelu(shapes, backward=True), lambda: t.gelu(backward=True), 0, 4 * item * long),
        ("RMSNorm", rmsnorm(shapes), lambda: t.rmsnorm(backward=False), 0, (4 + item) * wide),
        ("RMSNorm backward", rmsnorm_backward(shapes), lambda: t.rmsnorm(backward=True), 0, 16 * wide),
        ("RMSNorm of heads", rmsnorm_heads(shapes, backward=False), lambda: t.rmsnorm(backward=False, heads=all_heads), 0,
         2 * item * wide),
        ("RMSNorm of heads backward", rmsnorm_heads(shapes, backward=True),
         lambda: t.rmsnorm(backward=True, heads=all_heads), 0, 3 * item * wide),
        ("RoPE", rope(shapes), t.rope, 0, 2 * item * wide),
        ("SwiGLU", swiglu(shapes, backward=False), lambda: t.swiglu(backward=False), 0, 3 * item * long),
        ("SwiGLU backward", swiglu(shapes, backward=True), lambda: t.swiglu(backward=True), 0, 6 * item * long),
    ]  # fmt: skip


async def main(options: Namespace) -> None:
    place, shapes = Place(options.device), Shapes(options)
    section = Section("kernels", __doc__, options)
    section.configuration["shapes"] = (
        f"{shapes.seqs} sequences of {shapes.length} tokens, width {shapes.width}, {shapes.heads} heads, "
        f"{shapes.key_heads} of keys where grouped, vocab {shapes.vocab}")
    peaks = section.table("peaks: product of 8192 square matrices, TFLOP/s; copy in the device, GB/s read and written",
                          "what", "precision", "rate", "note")  # fmt: skip
    copied = copy_rate(place)
    section.add(peaks, "copy", "", copied / 1e9)
    free(place)
    product = 0.0
    for precision in ("bf16", "tf32", "fp32"):
        rate = gemm_rate(place, precision)
        product = rate if precision == options.precision else product
        section.add(peaks, "PyTorch eager", precision, rate / 1e12)
        with section.row(peaks, "CuPy", precision):  # only a second yardstick, so its failure stops nothing
            section.add(peaks, "CuPy", precision, (cupy_gemm_rate(place, precision) or 0.0) / 1e12 or None)
    table = section.table("kernels", "kernel", "us", "TFLOP/s", "GB/s", "of the roofline", "eager us", "x eager",
                          "note")  # fmt: skip
    torch_side = Torch(place, shapes)
    async with engine_of(section, options) as engine:
        for name, operations, theirs, flops, nbytes in works(shapes, torch_side):
            with section.row(table, name):
                seconds, other_s = await ours_s(engine, operations), theirs()
                bound = max(flops / product, nbytes / copied)
                section.add(table, name, seconds * 1e6, flops / seconds / 1e12 or None, nbytes / seconds / 1e9,
                            bound / seconds, other_s * 1e6, other_s / seconds,
                            torch_side.with_cudnn(theirs) if name.startswith("attention") else None)  # fmt: skip
                section.headline(f"{name}: of the roofline; x eager", f"{bound / seconds:.2f}; {other_s / seconds:.2f}")
            free(place)
    section.end()


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, KERNELS)))
