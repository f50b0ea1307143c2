"""The benchmarks of texts: the time of a token, the comparison with transformers, and that they run."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from asynctile.layers import GPT2Config


class Serving:
    """A server whose tokens are 7, 8 and so on, `missing` fewer than requested."""

    def __init__(self, missing: int = 0) -> None:
        self._missing = missing

    async def generate(self, prompt: Any, *, max_new_tokens: int, **how: Any) -> AsyncIterator[Any]:
        for index in range(max_new_tokens - self._missing):
            yield SimpleNamespace(id=7 + index)


async def test_a_text_has_its_ids_and_arrival_times_and_a_short_text_is_refused(bench: Any) -> None:
    texts = bench("texts")
    ids, times = await texts.write(Serving(), [1], 3)
    assert ids == [7, 8, 9]
    assert times == sorted(times) and len(times) == 3
    with pytest.raises(AssertionError, match="2 tokens, 3 were asked for"):
        await texts.write(Serving(missing=1), [1], 3)


def test_bytes_of_weights_leave_out_positions_and_bytes_of_a_cache_grow_by_the_token(bench: Any) -> None:
    texts = bench("texts")
    short, long = (GPT2Config(n_layer=2, n_head=2, n_embd=8, block_size=size, vocab_size=11) for size in (16, 64))
    assert texts.weights_nbytes(short) == texts.weights_nbytes(long) == 4 * (short.parameter_count - 16 * 8)
    assert texts.cache_nbytes(short, 3) == 3 * texts.cache_nbytes(short, 1) == 3 * 2 * 2 * 8 * 4


def test_a_context_is_compared_with_the_shortest_of_its_width(bench: Any) -> None:
    context = bench("bench_context")
    config = {width: GPT2Config(n_layer=4, n_head=1, n_embd=width, block_size=64, vocab_size=256) for width in (32, 64)}
    texts = {
        f"{width} {length}": SimpleNamespace(config=config[width], context=length, first=[9.0], anew=[9.0])
        for width in config for length in (8, 32, 48)
    }  # fmt: skip
    found = {"32 8": [1.0], "32 32": [9.0], "32 48": [1.4], "64 8": [10.0], "64 32": [10.0], "64 48": [16.0]}
    rows = context.results(texts, found).rows
    assert [row[2] for row in rows] == pytest.approx([1, 9, 1.4, 1, 1, 1.6])
    assert [row[3] for row in rows] == [None, None, "at most 1.5: met", None, None, "at most 1.5: MISSED"]


@pytest.mark.reference
def test_greedy_texts_are_compared_until_they_part_and_another_first_token_is_refused(bench: Any) -> None:
    generate = bench("bench_generate")
    ours = {(2, generate.GREEDY): [[1, 2, 3, 4], [5, 6, 7, 8]], (2, generate.SAMPLED): [[1], [2]]}
    theirs = {(2, generate.GREEDY): [[1, 2, 9, 4], [5, 6, 7, 8]], (2, generate.SAMPLED): [[3], [4]]}
    assert generate.agreement(ours, theirs) == pytest.approx((2 + 4) / 8)
    with pytest.raises(AssertionError, match="first token"):
        generate.agreement(ours, {(2, generate.GREEDY): [[1, 2, 3, 4], [9, 6, 7, 8]]})


TINY = {
    "bench_context": ["--rounds=1", "--tokens=3", "--block=32", "--contexts", "4", "20", "--widths", "32"],
    "bench_generate": ["--rounds=1", "--tokens=3", "--capped-tokens=2", "--prompt=5", "--block=16", "--requests", "1", "2",
                       "--models", "small"],
    "bench_stored": ["--rounds=1", "--length=6", "--batch=2", "--tokens=3", "--layers=1", "--vocab=40"],
}  # fmt: skip


@pytest.mark.parametrize("name", ["bench_context", "bench_stored", pytest.param("bench_generate", marks=pytest.mark.reference)])
async def test_the_benchmark_runs(
    bench: Any, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *TINY[name]])
    await bench(name).main()
    said = capsys.readouterr().out
    assert "met" in said or "MISSED" in said
