"""Every verb once more in plain NumPy, float64 inside, written only from the contracts in asynctile/ops.

VERBS has the shape of a device's kernels: function(*arrays, *params[, number]). Slow and obvious on purpose. Each verb is
written for float32 tiles; `with_bf16` makes it accept bf16 tiles by widening before and rounding after. Long because it has
every verb.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.kernels.bf16 import from_bf16, to_bf16
from asynctile.program.precision import BF16

Array = NDArray[Any]
IGNORED = -100


def gemm(a: Array, b: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
    gemm_bias(a, b, np.zeros(c.shape[1]), c, ta, tb, accumulate)


def gemm_bias(a: Array, b: Array, bias: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
    a, b = a.astype(np.float64), b.astype(np.float64)
    product = (a.T if ta else a) @ (b.T if tb else b) + bias
    c[:] = c + product if accumulate else product


def gemm_onto(a: Array, b: Array, source: Array, c: Array, ta: bool, tb: bool) -> None:
    gemm_bias_onto(a, b, np.zeros(c.shape[1]), source, c, ta, tb)


def gemm_bias_onto(a: Array, b: Array, bias: Array, source: Array, c: Array, ta: bool, tb: bool) -> None:
    c[:] = source
    gemm_bias(a, b, bias, c, ta, tb, True)


def gemm_rows(a: Array, b: Array, c: Array, tb: bool, accumulate: bool) -> None:
    gemm(a[: c.shape[0]], b, c, False, tb, accumulate)


def gemm_rows_bias(a: Array, b: Array, bias: Array, c: Array, tb: bool, accumulate: bool) -> None:
    gemm_bias(a[: c.shape[0]], b, bias, c, False, tb, accumulate)


def gemm_rows_onto(a: Array, b: Array, source: Array, c: Array, tb: bool) -> None:
    gemm_onto(a[: c.shape[0]], b, source, c, False, tb)


def gemm_rows_bias_onto(a: Array, b: Array, bias: Array, source: Array, c: Array, tb: bool) -> None:
    gemm_bias_onto(a[: c.shape[0]], b, bias, source, c, False, tb)


def copy(source: Array, target: Array) -> None:
    target[:] = source


def add(source: Array, target: Array) -> None:
    target[:] = target.astype(np.float64) + source


def fill(target: Array, value: float) -> None:
    target[:] = value


def scale(target: Array, factor: float) -> None:
    target *= np.float32(factor)


def column_sums(x: Array, sums: Array, accumulate: bool) -> None:
    _add(sums, x.sum(0, dtype=np.float64), accumulate)


def column_sums_copy(x: Array, sums: Array, copied: Array, accumulate: bool) -> None:
    column_sums(x, sums, accumulate)
    copied[:] = x


def _add(target: Array, value: Array, accumulate: bool) -> None:
    target[:] = target + value if accumulate else value


def gelu(x: Array, y: Array) -> None:
    y[:] = 0.5 * x * (1 + _tanh(x))


def gelu_and_backward(x: Array, y: Array, grad: Array, sums: Array, accumulate: bool) -> None:
    gelu(x, y)
    wide, t = x.astype(np.float64), _tanh(x)
    inner = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * wide**2)
    grad[:] = grad * (0.5 * (1 + t) + 0.5 * wide * (1 - t**2) * inner)
    column_sums(grad, sums, accumulate)


def _tanh(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))


def layernorm_stats(x: Array, stats: Array, seen: int, last: bool, eps: float) -> None:
    wide, columns = x.astype(np.float64), x.shape[1]
    mean = wide.mean(1)
    squares = ((wide - mean[:, None]) ** 2).sum(1)
    if seen:
        before, total = stats.astype(np.float64), seen + columns
        apart = mean - before[:, 0]
        mean = before[:, 0] + apart * columns / total
        squares = before[:, 1] + squares + apart**2 * seen * columns / total
    stats[:, 0] = mean
    stats[:, 1] = 1 / np.sqrt(squares / (seen + columns) + eps) if last else squares


def _normed(x: Array, stats: Array) -> Array:
    wide = stats.astype(np.float64)
    return (x - wide[:, :1]) * wide[:, 1:]


def layernorm(x: Array, stats: Array, gain: Array, bias: Array, y: Array) -> None:
    y[:] = _normed(x, stats) * gain + bias


def layernorm_whole(x: Array, gain: Array, bias: Array, stats: Array, y: Array, eps: float) -> None:
    layernorm_stats(x, stats, 0, True, eps)
    layernorm(x, stats, gain, bias, y)


def layernorm_sums(dinp: Array, x: Array, stats: Array, gain: Array, sums: Array, accumulate: bool) -> None:
    scaled = dinp.astype(np.float64) * gain
    _add(sums, np.stack([scaled.sum(1), (scaled * _normed(x, stats)).sum(1)], axis=1), accumulate)


def layernorm_backward(
    dinp: Array, x: Array, stats: Array, gain: Array, sums: Array, dx: Array, width: int, accumulate: bool
) -> None:
    mean = sums.astype(np.float64) / width
    value = dinp.astype(np.float64) * gain - mean[:, :1] - _normed(x, stats) * mean[:, 1:]
    _add(dx, stats[:, 1:] * value, accumulate)


def layernorm_gradients(dinp: Array, x: Array, stats: Array, dgain: Array, dbias: Array, accumulate: bool) -> None:
    _add(dgain, (dinp * _normed(x, stats)).sum(0), accumulate)
    _add(dbias, dinp.sum(0, dtype=np.float64), accumulate)


def layernorm_whole_backward(
    dinp: Array, x: Array, stats: Array, gain: Array, dx: Array, dgain: Array, dbias: Array, accumulate: bool, begun: bool
) -> None:
    sums = np.empty((x.shape[0], 2))
    layernorm_sums(dinp, x, stats, gain, sums, False)
    layernorm_backward(dinp, x, stats, gain, sums, dx, x.shape[1], accumulate)
    layernorm_gradients(dinp, x, stats, dgain, dbias, begun)


def rmsnorm_stats(x: Array, stats: Array, seen: int, last: bool, width: int, eps: float) -> None:
    squares = np.square(x, dtype=np.float64).sum(1, keepdims=True) + (stats if seen else 0)
    stats[:] = 1 / np.sqrt(squares / width + eps) if last else squares


def rmsnorm(x: Array, stats: Array, gain: Array, y: Array) -> None:
    y[:] = x.astype(np.float64) * stats * gain


def rmsnorm_whole(x: Array, gain: Array, stats: Array, y: Array, eps: float) -> None:
    rmsnorm_stats(x, stats, 0, True, x.shape[1], eps)
    rmsnorm(x, stats, gain, y)


def rmsnorm_sums(dinp: Array, x: Array, stats: Array, gain: Array, sums: Array, accumulate: bool) -> None:
    _add(sums, (dinp.astype(np.float64) * gain * x * stats).sum(1, keepdims=True), accumulate)


def rmsnorm_backward(
    dinp: Array, x: Array, stats: Array, gain: Array, sums: Array, dx: Array, width: int, accumulate: bool
) -> None:
    _add(dx, stats * (dinp.astype(np.float64) * gain - x * stats.astype(np.float64) * sums / width), accumulate)


def rmsnorm_gradients(dinp: Array, x: Array, stats: Array, dgain: Array, accumulate: bool) -> None:
    _add(dgain, (dinp.astype(np.float64) * x * stats).sum(0), accumulate)


def rmsnorm_whole_backward(
    dinp: Array, x: Array, stats: Array, gain: Array, dx: Array, dgain: Array, accumulate: bool, begun: bool
) -> None:
    sums = np.empty((x.shape[0], 1))
    rmsnorm_sums(dinp, x, stats, gain, sums, False)
    rmsnorm_backward(dinp, x, stats, gain, sums, dx, x.shape[1], accumulate)
    rmsnorm_gradients(dinp, x, stats, dgain, begun)


def rmsnorm_heads(x: Array, gain: Array, y: Array, heads: int, eps: float) -> None:
    for columns in np.split(np.arange(x.shape[1]), heads):
        normed = np.empty((len(x), len(columns)))
        rmsnorm_whole(x[:, columns], gain, np.empty((len(x), 1)), normed, eps)
        y[:, columns] = normed


def rmsnorm_heads_backward(x: Array, gain: Array, dy: Array, dgain: Array, heads: int, eps: float, begun: bool) -> None:
    total = dgain.astype(np.float64) if begun else np.zeros(len(dgain))
    for columns in np.split(np.arange(x.shape[1]), heads):
        stats, dx = np.empty((len(x), 1)), np.empty((len(x), len(columns)))
        rmsnorm_stats(x[:, columns], stats, 0, True, len(columns), eps)
        rmsnorm_whole_backward(dy[:, columns], x[:, columns], stats, gain, dx, total, False, True)
        dy[:, columns] = dx
    dgain[:] = total


def frequencies(half: int, theta: float, factor: float, low: float, high: float, original: float) -> Array:
    """Return f_i in float32, each step in float32 but the power."""
    single = np.float32
    own = 1 / single(theta ** (np.arange(0, 2 * half, 2).astype(single) / single(2 * half)).astype(np.float64))
    if not factor:
        return own
    waves = 1 / own * single(2 * np.pi)
    smooth = (1 / waves * single(original) - single(low)) / single(high - low)
    between = (1 - smooth) * own / single(factor) + smooth * own
    long, short = waves > single(original / low), waves < single(original / high)
    return np.where(long, own / single(factor), np.where(short, own, between))


def _turned(x: Array, positions: Array, heads: int, rotation: tuple[float, ...]) -> Array:
    half = x.shape[1] // heads // 2
    angles = (positions.astype(np.float32)[:, None] * frequencies(half, *rotation)).astype(np.float64)
    pairs = x.astype(np.float64).reshape(len(x), heads, 2, half)
    turned = (pairs[:, :, 0] + 1j * pairs[:, :, 1]) * np.exp(1j * angles)[:, None]
    return np.stack([turned.real, turned.imag], axis=2).reshape(x.shape)


def rope(x: Array, seqs: int, start: int, heads: int, inverse: bool, *rotation: float) -> None:
    positions = _positions(x, seqs, start)
    x[:] = _turned(x, -positions if inverse else positions, heads, rotation)


def rope_rows(positions: Array, x: Array, heads: int, inverse: bool, *rotation: float) -> None:
    there = positions >= 0
    x[there] = _turned(x[there], -positions[there] if inverse else positions[there], heads, rotation)


def swiglu(gate: Array, up: Array, y: Array) -> None:
    y[:] = gate * _sigmoid(gate) * up


def swiglu_and_backward(gate: Array, up: Array, y: Array, grad: Array, dgate: Array) -> None:
    swiglu(gate, up, y)
    share = _sigmoid(gate)
    dgate[:] = grad * up.astype(np.float64) * share * (1 + gate * (1 - share))
    grad[:] = grad * gate * share


def _sigmoid(x: Array) -> Array:
    return (1 + np.tanh(x.astype(np.float64) / 2)) / 2


def _heads(q: Array, k: Array, seqs: int, heads: int) -> Iterator[tuple[int, slice, slice, slice, slice]]:
    """Yield (head, its columns, those of its key head, rows of queries, rows of keys) for every head of every sequence."""
    size, queries, keys = q.shape[1] // heads, q.shape[0] // seqs, k.shape[0] // seqs
    for s in range(seqs):
        for h in range(heads):
            group = h // (q.shape[1] // k.shape[1])
            columns, shared = (slice(at * size, (at + 1) * size) for at in (h, group))
            yield h, columns, shared, slice(s * queries, (s + 1) * queries), slice(s * keys, (s + 1) * keys)


def _scores(q: Array, k: Array, diagonal: bool, starts: Array | None) -> Array:
    """Return the scores of queries and keys; -inf where a query does not see a key. starts: the first key of each query."""
    scores = q.astype(np.float64) @ k.astype(np.float64).T / np.sqrt(q.shape[1])
    if diagonal:
        scores[np.triu_indices_from(scores, 1)] = -np.inf
    if starts is not None:
        scores[np.arange(len(k)) < starts[:, None]] = -np.inf
    return scores


def _starts(positions: Array | None, queries: slice, apart: int) -> Array | None:
    if positions is None:
        return None
    mine = positions[queries]
    return apart + np.arange(len(mine)) - mine


def attention(
    q: Array, k: Array, v: Array, out: Array, stats: Array, seqs: int, heads: int, first: bool, diagonal: bool
) -> None:
    _attention(q, k, v, None, out, stats, seqs, heads, first, diagonal, 0)


def attention_packed(
    q: Array, k: Array, v: Array, positions: Array, out: Array, stats: Array,
    seqs: int, heads: int, first: bool, diagonal: bool, apart: int,
) -> None:  # fmt: skip
    _attention(q, k, v, positions, out, stats, seqs, heads, first, diagonal, apart)


def _attention(
    q: Array, k: Array, v: Array, positions: Array | None, out: Array, stats: Array,
    seqs: int, heads: int, first: bool, diagonal: bool, apart: int,
) -> None:  # fmt: skip
    for h, columns, shared, i, j in _heads(q, k, seqs, heads):
        scores = _scores(q[i, columns], k[j, shared], diagonal, _starts(positions, i, apart))
        largest, total, value = np.maximum(scores.max(1), -1e30), 0.0, 0.0
        if not first:
            largest = np.maximum(largest, stats[h, i])
            shrink = np.exp(stats[h, i] - largest)
            total, value = stats[heads + h, i] * shrink, out[i, columns] * shrink[:, None]
        weights = np.exp(scores - largest[:, None])
        total = total + weights.sum(1)
        value = value + weights @ v[j, shared]
        out[i, columns] = value / total[:, None] if diagonal else value
        stats[h, i] = largest + np.log(total) if diagonal else largest
        stats[heads + h, i] = total


def attention_page(
    q: Array, k: Array, v: Array, page: Array, rows: Array, pages: Array, out: Array, stats: Array,
    number: int, heads: int, first: bool, last: bool,
) -> None:  # fmt: skip
    if first:
        out[:], stats[:heads], stats[heads:] = 0, -np.inf, 0
    owner, start = pages[2 * number : 2 * number + 2]
    places = len(page) // 2
    mine = [(r, rows[2 * r + 1] - start) for r in range(len(q)) if owner != -1 and rows[2 * r] == owner]
    for r, place in mine:
        if 0 <= place < places:
            page[place], page[places + place] = k[r], v[r]
    for r, place in mine:
        met = slice(0, min(places, place + 1))
        if place >= 0:
            keys, values = page[:places][met], page[places:][met]
            attention(q[r : r + 1], keys, values, out[r : r + 1], stats[:, r : r + 1], 1, heads, False, False)
    if last:
        totals = np.repeat(stats[heads:].T, q.shape[1] // heads, axis=1)
        out[:] = np.where(totals == 0, 0, out / np.where(totals == 0, 1, totals))


def attention_delta(out: Array, dout: Array, delta: Array, heads: int) -> None:
    product = (out.astype(np.float64) * dout).reshape(out.shape[0], heads, -1)
    delta[:] = product.sum(2).T


def attention_backward(
    q: Array, k: Array, v: Array, dout: Array, stats: Array, delta: Array, dq: Array, dk: Array, dv: Array,
    seqs: int, heads: int, first: bool, diagonal: bool,
) -> None:  # fmt: skip
    _attention_backward(q, k, v, None, dout, stats, delta, dq, dk, dv, seqs, heads, first, diagonal, 0)


def attention_packed_backward(
    q: Array, k: Array, v: Array, positions: Array, dout: Array, stats: Array, delta: Array, dq: Array, dk: Array, dv: Array,
    seqs: int, heads: int, first: bool, diagonal: bool, apart: int,
) -> None:  # fmt: skip
    _attention_backward(q, k, v, positions, dout, stats, delta, dq, dk, dv, seqs, heads, first, diagonal, apart)


def _attention_backward(
    q: Array, k: Array, v: Array, positions: Array | None, dout: Array, stats: Array, delta: Array, dq: Array, dk: Array,
    dv: Array, seqs: int, heads: int, first: bool, diagonal: bool, apart: int,
) -> None:  # fmt: skip
    for h, columns, shared, i, j in _heads(q, k, seqs, heads):
        scores = _scores(q[i, columns], k[j, shared], diagonal, _starts(positions, i, apart))
        weights = np.exp(scores - stats[h, i][:, None].astype(np.float64))
        dweights = dout[i, columns].astype(np.float64) @ v[j, shared].T
        dscores = weights * (dweights - delta[h, i][:, None]) / np.sqrt(columns.stop - columns.start)
        if positions is not None:
            dscores[positions[i] == 0] = 0
        elif first and diagonal:
            dscores[0] = 0
        begun = not diagonal or shared.start * q.shape[1] // k.shape[1] != columns.start
        _add(dq[i, columns], dscores @ k[j, shared], not first)
        _add(dk[j, shared], dscores.T @ q[i, columns], begun)
        _add(dv[j, shared], weights.T @ dout[i, columns], begun)


def attention_backward_whole(
    q: Array, k: Array, v: Array, out: Array, dout: Array, stats: Array, delta: Array, dq: Array, dk: Array, dv: Array,
    seqs: int, heads: int,
) -> None:  # fmt: skip
    attention_delta(out, dout, delta, heads)
    attention_backward(q, k, v, dout, stats, delta, dq, dk, dv, seqs, heads, True, True)


def cross_entropy(
    logits: Array, targets: Array, stats: Array, column: int, padding: int, first: bool, last: bool, number: Array
) -> None:
    wide = logits[:, : logits.shape[1] - padding].astype(np.float64)
    before = np.full(stats.shape, [-np.inf, 0.0, 0.0]) if first else stats.astype(np.float64)
    largest = np.maximum(before[:, 0], wide.max(1))
    total = before[:, 1] * np.exp(before[:, 0] - largest) + np.exp(wide - largest[:, None]).sum(1)
    here = (targets >= column) & (targets < column + wide.shape[1])
    rows = np.flatnonzero(here)
    before[rows, 2] = wide[rows, targets[rows] - column]
    stats[:, 0] = largest + np.log(total) if last else largest
    stats[:, 1], stats[:, 2] = total, before[:, 2]
    if last:
        number[0] = (largest + np.log(total) - before[:, 2])[targets != IGNORED].sum()


def cross_entropy_backward(
    targets: Array, stats: Array, scale: Array, logits: Array, column: int, padding: int
) -> None:
    columns = logits.shape[1] - padding
    grad = np.exp(logits[:, :columns].astype(np.float64) - stats[:, :1])
    rows = np.flatnonzero((targets >= column) & (targets < column + columns))
    grad[rows, targets[rows] - column] -= 1
    logits[:, :columns] = np.where((targets == IGNORED)[:, None], 0.0, grad * scale[0])
    logits[:, columns:] = 0.0


def _positions(x: Array, seqs: int, start: int) -> Array:
    return np.tile(np.arange(start, start + x.shape[0] // seqs), seqs)


def embed_positions(wpe: Array, x: Array, seqs: int, start: int, row: int) -> None:
    for r, position in enumerate(_positions(x, seqs, start) - row):
        if 0 <= position < len(wpe):
            x[r] = wpe[position]


def embed_positions_backward(dx: Array, dwpe: Array, seqs: int, start: int, row: int) -> None:
    for r, position in enumerate(_positions(dx, seqs, start) - row):
        if 0 <= position < len(dwpe):
            dwpe[position] += dx[r]


def embed_tokens(tokens: Array, wte: Array, x: Array, row: int) -> None:
    for r, token in enumerate(tokens - row):
        if 0 <= token < len(wte):
            x[r] += wte[token]


def embed_tokens_backward(tokens: Array, dx: Array, dwte: Array, row: int) -> None:
    for r, token in enumerate(tokens - row):
        if 0 <= token < len(dwte):
            dwte[token] += dx[r]


def adamw(w: Array, g: Array, m: Array, v: Array, hyper: Array, decay: bool, padding: int, number: Array) -> None:
    """Match the contract bit for bit: NumPy rounds each float32 operation once, in the order written."""
    factor, beta1, omb1, beta2, omb2, keep, step, root, eps = hyper
    sum_squares(g, padding, number)
    scaled = g * factor
    m[:] = beta1 * m + omb1 * scaled
    v[:] = beta2 * v + omb2 * (scaled * scaled)
    if decay:
        w *= keep
    w -= step * (m / (np.sqrt(v) / root + eps))
    for x in (w, m, v):
        x.reshape(-1)[x.size - padding :] = 0.0


def adamw_bf16(
    w: Array, g: Array, m: Array, v: Array, hyper: Array, copied: Array, decay: bool, padding: int, number: Array
) -> None:
    adamw(w, g, m, v, hyper, decay, padding, number)
    copied[:] = w


def sum_squares(g: Array, padding: int, number: Array) -> None:
    number[0] = np.square(g.reshape(-1)[: g.size - padding], dtype=np.float64).sum()


def with_bf16(verb: Callable[..., None]) -> Callable[..., None]:
    """Return `verb` for tiles of which some are bf16. Tiles that it only reads keep their bits: rounding changes nothing."""

    @wraps(verb)
    def widened(*arguments: Any) -> None:
        narrow = {i: x for i, x in enumerate(arguments) if isinstance(x, np.ndarray) and x.dtype == BF16}
        wide = {i: from_bf16(x) for i, x in narrow.items()}
        verb(*(wide.get(i, x) for i, x in enumerate(arguments)))
        for i, x in narrow.items():
            x[...] = to_bf16(wide[i])

    return widened


VERBS: dict[str, Callable[..., None]] = {
    verb.__name__: with_bf16(verb)
    for verb in (
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
