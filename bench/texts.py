"""Texts that a server writes, with the time of each token, and the least time of one step for all of them.

For bench_context.py, bench_generate.py and bench_tokens.py.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numba
import numpy as np
from common import CORES
from numpy.typing import NDArray

from asynctile.layers import GPT2Config

GREEDY: dict[str, Any] = {"temperature": 0.0}
TOP_K: dict[str, Any] = {"temperature": 0.8, "top_k": 50}
HOW = {"greedy": GREEDY, "top_k 50": TOP_K}


def prompts(config: GPT2Config, count: int, length: int) -> NDArray[np.int64]:
    """Return random tokens (count, length)."""
    return np.random.default_rng(2).integers(0, config.vocab_size, (count, length))


async def write(server: Any, prompt: Any, count: int, **how: Any) -> tuple[list[int], list[float]]:
    """Write `count` tokens after `prompt` (T,). Returns their ids, and when each came, by time.perf_counter."""
    ids, times = [], []
    async for token in server.generate(prompt, max_new_tokens=count, **how):
        ids.append(token.id)
        times.append(time.perf_counter())
    assert len(ids) == count, f"a text has {len(ids)} tokens, {count} were asked for"
    return ids, times


@numba.njit(nogil=True)
def _total(values):  # type: ignore[no-untyped-def]
    total = np.int64(0)  # integer sums may be reordered, so the loop vectorizes
    for index in range(values.size):
        total += values[index]
    return total


def read_rate(nbytes: int, seconds: float = 0.5) -> float:
    """Return the bytes a second that all cores read together, repeatedly, from arrays of `nbytes` in all.

    The arrays come from RAM unless a cache holds them.
    """
    parts = [np.ones(max(1, nbytes // 8 // CORES), np.int64) for _ in range(CORES)]
    _total(parts[0])
    rates = [0.0] * CORES
    barrier = threading.Barrier(CORES)

    def read(worker: int) -> None:
        _total(parts[worker])
        barrier.wait()
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            _total(parts[worker])
            count += 1
        rates[worker] = count * parts[worker].nbytes / (time.perf_counter() - start)

    threads = [threading.Thread(target=read, args=(worker,)) for worker in range(CORES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


def weights_nbytes(config: GPT2Config) -> int:
    """Return the bytes of the weights that a token uses: all but the rows of the position embedding."""
    return 4 * (config.parameter_count - config.block_size * config.n_embd)


def cache_nbytes(config: GPT2Config, context: int) -> int:
    """Return the bytes of the keys and values of `context` tokens in all layers."""
    return 4 * 2 * config.n_layer * config.n_embd * context
