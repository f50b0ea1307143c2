"""The benchmark of tokens beside a training: texts are requested at set times, and the loss of speed is judged."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from asynctile.layers import GPT2Config


class Serving:
    """A server that writes nothing before `may` is set. four_asked: set once that many texts were requested."""

    def __init__(self) -> None:
        self.asked = 0
        self.four_asked, self.may = asyncio.Event(), asyncio.Event()

    async def generate(self, prompt: Any, *, max_new_tokens: int, **how: Any) -> AsyncIterator[Any]:
        self.asked += 1
        if self.asked == 4:
            self.four_asked.set()
        await self.may.wait()
        for index in range(max_new_tokens):
            yield SimpleNamespace(id=index)


async def test_texts_are_requested_without_answers_and_a_first_token_counts_from_its_due_time(bench: Any) -> None:
    tokens, server = bench("bench_tokens"), Serving()
    config = GPT2Config(n_layer=1, n_head=1, n_embd=8, block_size=32, vocab_size=11)
    one = tokens.Requests(server, None, config, Namespace(tokens=3, requests=200.0, seconds=0.1))

    async def keep_four_waiting() -> None:
        await server.four_asked.wait()
        await asyncio.sleep(0.05)
        server.may.set()

    await asyncio.gather(keep_four_waiting(), one.p95())
    first, later = one.lags[0][tokens.FIRST], one.lags[0][tokens.NEXT]
    assert len(first) == server.asked and len(later) == 2 * len(first)
    assert sum(lag >= 50 for lag in first) >= 4


@pytest.mark.parametrize(
    ("lag", "own", "kept", "said"), [(3.0, 4.9, 8.1, ("met", "met", "met")), (8.1, 151.0, 7.0, ("MISSED", "MISSED", "MISSED"))]
)
def test_goals_are_three_times_unloaded_plus_one_operation_or_one_and_a_half_steps(
    bench: Any, lag: float, own: float, kept: float, said: Sequence[str]
) -> None:
    tokens = bench("bench_tokens")
    lags = {tokens.UNLOADED: 2.0, tokens.BESIDE: lag, tokens.SHARED: own}
    asked = {
        name: SimpleNamespace(lags=[{tokens.FIRST: [value], tokens.NEXT: [value, value]}], speed=[kept])
        for name, value in lags.items()
    }
    table, training = tokens.results(asked, [10.0], 2.0)
    goals = [goal for row in table.rows for goal in row[-2:] if goal is not None]
    beside = f"at most 8: {said[0]}"
    assert goals == [beside, beside, f"at most 5: {said[1]}", f"at most 150: {said[1]}"]
    assert [row[-1] for row in training.rows] == [None, *[f"at least 0.8: {said[2]}"] * 2]


async def test_the_benchmark_runs(bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--rounds=1", "--seconds=0.2", "--requests=10", "--tokens=3", "--batch=1", "--block=32"]
    monkeypatch.setattr(sys, "argv", ["bench_tokens.py", *tiny])
    await bench("bench_tokens").main()
    rows = [line for line in capsys.readouterr().out.splitlines() if "at most" in line or "at least" in line]
    assert len(rows) == 5


async def test_against_another_tree_texts_are_written_one_by_one_and_steps_go_on(bench: Any) -> None:
    tokens = bench("bench_tokens")
    options = Namespace(seconds=0.2, tokens=3, batch=1, block=32)
    async with tokens.opened(options) as sides:
        assert list(sides) == list(tokens.BOUNDS)
        assert all([await side() > 0 for side in sides.values()])
