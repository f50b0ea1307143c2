"""How long does a token take while the model trains, and how much slower is the training?

    python bench/bench_tokens.py [--rounds 3] [--seconds 15] [--requests 2] [--tokens 20] [--batch 2] [--block 512] [--write]
    python bench/bench_tokens.py --against TREE [--starts 6]    # another commit's package and this one

The model of `make train` with --block positions, float32, on `cpu`. --requests times a second a client asks for a text of
--tokens tokens after a prompt of 16, as a Poisson process that waits for no answer. Three cases: no training; a training whose
newest published weights an interactive share serves; and the model that trains itself, between its steps, without a share. The
first token of a text counts from when the text was due, every other token from the one before. Targets: p95 at most 3 times the
median without a training plus the longest operation of a step; without a share the median of next tokens at most 5 ms, and p95
at most a step and a half; the training keeps 0.8 of its speed alone.

--against writes one text after another for --seconds, without a share. Targets: a tenth of the time between tokens, and steps
keep 0.8 of their speed.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from against import compare
from common import Side, Table, arguments, batch, in_turn, publish, target
from paired import Bound
from small_model import SHAPE
from texts import GREEDY, prompts, write
from window import Steps, rates

from asynctile import Engine
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer

UNLOADED, BESIDE, SHARED, ALONE = "no training", "an interactive share", "the training's own share", "training alone"
PROMPT = 16
MEMORY = "512MiB"
#: The most time a token may take, relative to no training, and the least share of its speed that a training keeps.
MOST, LEAST = 3.0, 0.8
#: Without a share: the most milliseconds for the median of next tokens, and the most steps for their p95.
MOST_MS, MOST_STEPS = 5.0, 1.5
#: With --against: the two measurements, and how much they may grow.
TOKEN, STEP = "a next token, one text after another beside steps", "a step beside them"
BOUNDS = {TOKEN: Bound(-90.0, percent=True), STEP: Bound(100 * (1 / LEAST - 1), percent=True)}
PERCENTILES = (50, 95, 100)
FIRST, NEXT = "first token", "next token"


class Requests:
    """A side: texts asked for at set times, with a training or without.

    Per measurement: lags, milliseconds of first and of next tokens; speed, steps a second meanwhile.
    """

    def __init__(self, server: Any, training: Steps | None, config: GPT2Config, options: Namespace) -> None:
        self.lags: list[dict[str, list[float]]] = []
        self.speed: list[float] = []
        self._server = server
        self._training = training
        self._options = options
        self._prompt = prompts(config, 1, PROMPT)[0]

    async def warm(self) -> None:
        """Write one text that does not count."""
        await write(self._server, self._prompt, self._options.tokens, **GREEDY)

    async def p95(self) -> float:
        """Return the milliseconds within which 95% of next tokens come."""
        stop = asyncio.Event()
        training = None if self._training is None else asyncio.create_task(self._training.run(stop))
        try:
            begin, end = await self._ask()
        finally:
            stop.set()
            if training is not None:
                await training
        if self._training is not None:
            self.speed.append(self._training.rate(begin, end))
        return float(np.percentile(self.lags[-1][NEXT], 95))

    async def _ask(self) -> tuple[float, float]:
        """Ask for all the texts of one round, and return when the asking began and ended."""
        lags: dict[str, list[float]] = {FIRST: [], NEXT: []}
        chance = np.random.default_rng(3)
        begin = due = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            while (due := due + chance.exponential(1 / self._options.requests)) < begin + self._options.seconds:
                await asyncio.sleep(due - time.perf_counter())
                group.create_task(self._text(due, lags))
            await asyncio.sleep(begin + self._options.seconds - time.perf_counter())
            end = time.perf_counter()
            if not lags[FIRST]:  # a short round
                await self._text(time.perf_counter(), lags)
        self.lags.append(lags)
        return begin, end

    async def _text(self, due: float, lags: dict[str, list[float]]) -> None:
        _, times = await write(self._server, self._prompt, self._options.tokens, **GREEDY)
        took = np.diff([due, *times]) * 1e3
        lags[FIRST].append(float(took[0]))
        lags[NEXT] += took[1:].tolist()


async def open_training(stack: AsyncExitStack, config: GPT2Config, options: Namespace) -> Steps:
    engine = await stack.enter_async_context(Engine("cpu", host_memory="2GiB"))
    trainer = Trainer(await GPT2.create(engine, config, seed=1), AdamW(lr=1e-4))
    return Steps(trainer, batch(config, options.batch, options.block))


async def written(server: Any, training: Steps, config: GPT2Config, options: Namespace) -> tuple[float, float]:
    """Write one text after another. Returns the mean milliseconds between tokens, and the milliseconds per step meanwhile."""
    stop, prompt, lags = asyncio.Event(), prompts(config, 1, PROMPT)[0], []
    begin = time.perf_counter()
    steps = asyncio.create_task(training.run(stop))
    while (end := time.perf_counter()) < begin + options.seconds:
        _, times = await write(server, prompt, options.tokens, **GREEDY)
        lags += np.diff(times).tolist()
    stop.set()
    await steps
    return 1e3 * statistics.mean(lags), 1e3 / training.rate(begin, end)


@asynccontextmanager
async def opened(options: Namespace) -> AsyncIterator[dict[str, Side]]:
    """Yield the sides that a process of --against measures: a training and a server on one share."""
    config = config_of(options)
    async with AsyncExitStack() as stack:
        training = await open_training(stack, config, options)
        server = await stack.enter_async_context(training.trainer.model.serve())

        async def token() -> float:
            return (await written(server, training, config, options))[0]

        async def step() -> float:
            return (await written(server, training, config, options))[1]

        yield {TOKEN: token, STEP: step}


def config_of(options: Namespace) -> GPT2Config:
    return GPT2Config(n_layer=SHAPE.n_layer, n_head=SHAPE.n_head, n_embd=SHAPE.n_embd, vocab_size=SHAPE.vocab_size,
                      block_size=options.block)  # fmt: skip


def described(options: Namespace) -> dict[str, str]:
    """Describe the model and the texts."""
    return {
        "model": f"GPT-2, {config_of(options).summary}, T {options.block}, B {options.batch}, float32, on cpu",
        "texts": f"{options.tokens} tokens, {options.requests:g} texts a second",
    }


async def longest_operation(config: GPT2Config, options: Namespace, steps: int = 5) -> float:
    """Return the milliseconds of a step's longest operation, the median of some steps by coroutines."""
    longest = []
    async with AsyncExitStack() as stack:
        training = await open_training(stack, config, options)
        engine = training.trainer.model.engine
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine.start_trace()
        for _ in range(steps + 1):
            await rates([training], 0.0)
            engine.write_trace(folder / "trace.json")
            engine.start_trace()
            events = json.loads((folder / "trace.json").read_text(encoding="utf-8"))
            longest.append(max(event["dur"] for event in events if event.get("cat") == "kernel") / 1e3)
    return statistics.median(longest[1:])


async def main() -> None:
    against = {"starts": 6, "rounds": 1}
    options = arguments(__doc__, against, rounds=3, seconds=15.0, requests=2.0, tokens=20, batch=2, block=512)
    if options.against:
        texts = {"texts": f"{options.tokens} tokens, one text after another for {options.seconds:g} s"}
        await compare("bench_tokens", __doc__, options, "ms", BOUNDS, described(options) | texts)
    else:
        await beside(options)


async def beside(options: Namespace) -> None:
    config = config_of(options)
    operation_ms = await longest_operation(config, options)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        alone, served, shared = [await open_training(stack, config, options) for _ in range(3)]
        part = await enter(served.trainer.model.engine.share(host_memory=MEMORY, interactive=True))
        server = await enter(served.trainer.model.serve(part))
        own = await enter(shared.trainer.model.serve())
        asked = {
            UNLOADED: Requests(server, None, config, options),
            BESIDE: Requests(server, served, config, options),
            SHARED: Requests(own, shared, config, options),
        }
        speeds: list[float] = []

        async def training_alone() -> float:
            speeds.extend(await rates([alone], options.seconds / 2))
            return speeds[-1]

        sides: dict[str, Side] = {name: one.p95 for name, one in asked.items()} | {ALONE: training_alone}
        for training in (alone, served, shared):
            await rates([training], 0.0)
        for one in asked.values():  # warm up: programs are recorded and scheduled
            await one.warm()
        await in_turn(sides, options.rounds)
    configuration = described(options) | {
        "longest operation of a step": f"{operation_ms:.2f} ms",
        "repeats": f"all tokens of {options.rounds} rounds of {options.seconds:g} s, sides in turn",
    }
    publish("bench_tokens", __doc__, configuration, results(asked, speeds, operation_ms), write=options.write)


def results(asked: Mapping[str, Requests], alone: list[float], operation_ms: float) -> list[Table]:
    """Return two tables. alone: steps a second of a training alone, one value per round."""
    tokens = Table("a token, ms", ("token", "beside", "p50", "p95", "worst", "tokens", "for p50", "target for p95"))
    for kind in (FIRST, NEXT):
        every = {name: [lag for lags in one.lags for lag in lags[kind]] for name, one in asked.items()}
        most = {BESIDE: MOST * statistics.median(every[UNLOADED]) + operation_ms}
        if kind == NEXT:
            most[SHARED] = MOST_STEPS * 1e3 / statistics.median(alone)
        for name, lags in every.items():
            shown = [float(value) for value in np.percentile(lags, PERCENTILES)]
            half = target(shown[0], MOST_MS, above=False) if kind == NEXT and name == SHARED else None
            goal = target(shown[1], round(most[name], 2), above=False) if name in most else None
            tokens.rows.append((kind, name, *shown, len(lags), half, goal))
    training = Table("the training, steps a second", ("beside", "steps", "of alone", "target"))
    training.rows.append((ALONE, statistics.median(alone), None, None))
    for name in (BESIDE, SHARED):
        speed = asked[name].speed
        kept = statistics.median(one / all_ for one, all_ in zip(speed, alone, strict=True))
        training.rows.append((f"tokens by {name}", statistics.median(speed), kept, target(kept, LEAST)))
    return [tokens, training]


if __name__ == "__main__":
    asyncio.run(main())
