"""How close do the kernels come to this GPU's limits, and to PyTorch's kernels?

    python bench/gpu_kernels.py [--device cuda:0] [--sequences 16] [--length 1024] [--width 1600] [--heads 25] [--vocab 50257]
                                [--write]

Shapes of GPT-2 XL by default. Each kernel runs as a program of the engine that repeats the same operations, with all tiles on
the device. Roofline: FLOPs over the measured GEMM rate, or the fewest bytes (each input read once, each output written once)
over the measured copy rate, whichever takes longer. PyTorch does the same work, eager, in the same process; the note of
attention also has PyTorch with cuDNN. A causal attention counts half of the square; its backward pass counts five products,
including the recomputed forward ones.
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


class Shapes:
    """The sizes of the options, and the dtype of activations: bf16 bits as uint16, or float32."""

    def __init__(self, options: Namespace) -> None:
        self.seqs, self.length, self.width = options.sequences, options.length, options.width
        self.heads, self.vocab = options.heads, options.vocab
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


def attention(shapes: Shapes, *, backward: bool) -> list[Operation]:
    wide = {name: tile(name, shapes.rows, shapes.width, dtype=shapes.dtype)
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

    def attention(self, *, backward: bool) -> float:
        s = self.shapes
        q, k, v = (self.draw(s.seqs, s.heads, s.length, s.width // s.heads, grad=backward) for _ in range(3))
        run = lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
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
    adamw_bytes = (28 + (2 if shapes.precision == "bf16" else 0)) * weights
    t = torch_side
    return [
        ("AdamW", adamw(shapes), t.adamw, 0, adamw_bytes),
        ("GEMM, MLP forward", gemm(shapes, 4 * d, d), lambda: t.gemm(4 * d, d), 2.0 * rows * weights,
         item * (wide + long + weights)),
        ("GEMM, its gradient", gemm(shapes, 4 * d, d, True), lambda: t.gemm(4 * d, d, True), 2.0 * rows * weights,
         item * (wide + long) + 4 * weights),
        ("attention", attention(shapes, backward=False), lambda: t.attention(backward=False), 2 * square, 4 * item * wide),
        ("attention backward", attention(shapes, backward=True), lambda: t.attention(backward=True), 5 * square,
         8 * item * wide),
        ("cross-entropy and gradient", cross_entropy(shapes), t.cross_entropy, 0, 3 * item * rows * shapes.vocab),
        ("layernorm", layernorm(shapes), lambda: t.layernorm(backward=False), 0, (4 + item) * wide),
        ("layernorm backward", layernorm_backward(shapes), lambda: t.layernorm(backward=True), 0, 16 * wide),
        ("GELU", gelu(shapes, backward=False), lambda: t.gelu(backward=False), 0, 2 * item * long),
        ("GELU backward", gelu(shapes, backward=True), lambda: t.gelu(backward=True), 0, 4 * item * long),
    ]  # fmt: skip


async def main(options: Namespace) -> None:
    place, shapes = Place(options.device), Shapes(options)
    section = Section("kernels", __doc__, options)
    section.configuration["shapes"] = (
        f"{shapes.seqs} sequences of {shapes.length} tokens, width {shapes.width}, {shapes.heads} heads, vocab {shapes.vocab}")
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
