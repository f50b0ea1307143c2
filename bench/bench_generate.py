"""How many tokens a second does a model write for several requests at once, compared with transformers?

    python bench/bench_generate.py [--rounds 3] [--tokens 32] [--prompt 32] [--requests 1 4 16] [--models small gpt2] [--write]

Two models with random weights, on the cores of this machine, all in RAM: the model of `make train` with more positions, and the
shape of gpt2. --requests texts are asked for at once from one server on `cpu`, and as one batch from transformers' `generate`
with its cache on. Weights, prompts and lengths are the same, decoding is greedy, and the largest number of requests runs once
more with top_k 50. Tokens a second count from the request to the last token, prompts included. The bound is the most that
memory allows: as many tokens as requests for each time that all weights are read. Target: at least as fast as transformers, in
turn in one process.

Then asynctile alone where the weights do not fit: under a cap of 25% of the states (weights and AdamW's moments), three
quarters of the weights, as `device_memory` of `emulated`, and as `host_memory` of `cpu` with the rest in a folder (--folder).
Reported without a target.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from common import CORES, Side, Table, arguments, in_turn, library, publish, target
from small_model import SHAPE
from texts import HOW, prompts, read_rate, weights_nbytes, write

from asynctile import Engine
from asynctile.layers import GPT2, GPT2Config

torch, transformers = library("torch"), library("transformers")
OURS, THEIRS = "asynctile", "transformers"
GREEDY, SAMPLED = HOW
CAP = 0.25
SHAPES = {
    "small": {"n_layer": SHAPE.n_layer, "n_head": SHAPE.n_head, "n_embd": SHAPE.n_embd, "vocab_size": SHAPE.vocab_size},
    "gpt2": {"n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257},
}


class Ours:
    """Texts of one server. ids: the token ids of the last texts, by number of requests and way of sampling."""

    def __init__(self, server: Any, asked: Any, tokens: int) -> None:
        self._server = server
        self._asked = asked
        self._tokens = tokens
        self.ids: dict[tuple[int, str], list[list[int]]] = {}

    async def rate(self, count: int, how: str) -> float:
        """Return tokens a second for `count` requests at once."""
        began = time.perf_counter()
        texts = await asyncio.gather(*(
            write(self._server, prompt, self._tokens, **HOW[how], **({} if how == GREEDY else {"seed": row}))
            for row, prompt in enumerate(self._asked[:count])
        ))  # fmt: skip
        self.ids[count, how] = [ids for ids, _ in texts]
        return count * self._tokens / (time.perf_counter() - began)


class Theirs:
    """The same texts in one batch of transformers."""

    def __init__(self, weights: Mapping[str, Any], config: GPT2Config, asked: Any, tokens: int) -> None:
        shape = transformers.GPT2Config(
            n_layer=config.n_layer, n_head=config.n_head, n_embd=config.n_embd, n_positions=config.block_size,
            vocab_size=config.vocab_size, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        self._model = transformers.GPT2LMHeadModel(shape).eval()
        given = {name: torch.from_numpy(value) for name, value in weights.items()}
        found = self._model.load_state_dict(given, strict=False)
        assert not found.unexpected_keys and found.missing_keys in ([], ["lm_head.weight"]), found  # tied
        self._asked = torch.from_numpy(asked)
        self._tokens = tokens
        self.ids: dict[tuple[int, str], list[list[int]]] = {}

    async def rate(self, count: int, how: str) -> float:
        """Return tokens a second for `count` requests at once."""
        assert torch.get_num_threads() == CORES, "torch must have every core"
        asked = self._asked[:count]
        chosen = {"do_sample": False} if how == GREEDY else {"do_sample": True, **HOW[how]}
        began = time.perf_counter()
        with torch.inference_mode():
            found = self._model.generate(
                asked, attention_mask=torch.ones_like(asked), max_new_tokens=self._tokens, min_new_tokens=self._tokens,
                use_cache=True, pad_token_id=0, **chosen)  # fmt: skip
        spent = time.perf_counter() - began
        self.ids[count, how] = found[:, asked.shape[1] :].tolist()
        return count * self._tokens / spent


def config_of(name: str, options: Namespace) -> GPT2Config:
    return GPT2Config(**SHAPES[name], block_size=max(options.block, options.prompt + options.tokens))


@asynccontextmanager
async def served(config: GPT2Config, most: int, *placed: Any, **placement: Any) -> AsyncIterator[tuple[GPT2, Any]]:
    """Open a model with random weights on an engine of its own, and its server."""
    async with Engine(*placed, **placement) as engine:
        model = await GPT2.create(engine, config, seed=1)
        async with model.serve(most=most) as server:
            yield model, server


async def beside(name: str, options: Namespace) -> tuple[Table, float]:
    """Return the table of one model in asynctile and in transformers, and the share of greedy tokens that agree."""
    config, most = config_of(name, options), max(options.requests)
    asked = prompts(config, most, options.prompt)
    async with served(config, most, "cpu") as (model, server):
        ours = Ours(server, asked, options.tokens)
        theirs = Theirs(await model.state_dict(), config, asked, options.tokens)
        cases = [(count, GREEDY) for count in options.requests] + [(most, SAMPLED)]
        sides: dict[str, Side] = {}
        for case in cases:
            for who, one in ((OURS, ours), (THEIRS, theirs)):
                sides[label(who, *case)] = partial(one.rate, *case)
        await in_turn(sides, 1)  # warm up: programs are recorded and scheduled
        found = await in_turn(sides, options.rounds)
        rates = await in_turn({"bytes/s": _reading(weights_nbytes(config))}, 3)
    least_s = weights_nbytes(config) / statistics.median(rates["bytes/s"])
    table = Table(f"{name}: {config.summary}, {weights_nbytes(config) / 1e6:.1f} MB of weights; tokens a second",
                  ("requests at once", OURS, THEIRS, "times", "target", "bound: weights read"))  # fmt: skip
    for count, how in cases:
        own, other = found[label(OURS, count, how)], found[label(THEIRS, count, how)]
        times = statistics.median(a / b for a, b in zip(own, other, strict=True))
        table.rows.append((f"{count}, {how}", statistics.median(own), statistics.median(other), times, target(times, 1.0),
                           count / least_s))  # fmt: skip
    return table, agreement(ours.ids, theirs.ids)


def label(who: str, count: int, how: str) -> str:
    return f"{who}, {count}, {how}"


def _reading(nbytes: int) -> Side:
    async def side() -> float:
        return read_rate(nbytes)

    return side


def agreement(ours: Mapping[tuple[int, str], list[list[int]]], theirs: Mapping[tuple[int, str], list[list[int]]]) -> float:
    """Return the share of tokens of greedy texts that both chose before a text first differs.

    Tokens after the first difference continue another text. Raises AssertionError if a first token differs, because then the
    two models compute different things.
    """
    same = total = 0
    for case, texts in ours.items():
        if case[1] != GREEDY:
            continue
        for own, other in zip(texts, theirs[case], strict=True):
            equal = next((index for index, (a, b) in enumerate(zip(own, other, strict=True)) if a != b), len(own))
            assert equal, f"the first token of a text is {own[0]}, transformers chose {other[0]}"
            same, total = same + equal, total + len(own)
    return same / total


async def capped(name: str, options: Namespace, folder: str) -> list[tuple[Any, ...]]:
    """Return the rows of one model under a cap of CAP of its states, for both places of the cap."""
    config, most = config_of(name, options), max(options.requests)
    cap = int(CAP * config.states_nbytes)
    asked = prompts(config, most, options.prompt)
    rows: list[tuple[Any, ...]] = []
    async with AsyncExitStack() as stack:
        sides: dict[str, Side] = {}
        for where, placed, placement in (
            ("device_memory", "emulated", {"device_memory": cap}),
            ("host_memory, the rest in a folder", "cpu", {"host_memory": cap, "spill": folder}),
        ):
            _, server = await stack.enter_async_context(served(config, most, placed, **placement))
            ours = Ours(server, asked, options.capped_tokens)
            for count in options.requests:
                sides[f"{name}, {where}, {count}"] = partial(ours.rate, count, GREEDY)
        await in_turn(sides, 1)
        for side, rates in (await in_turn(sides, 1)).items():
            rows.append((side, cap / 1e6, statistics.median(rates)))
    return rows


async def main() -> None:
    options = arguments(__doc__, rounds=3, tokens=32, capped_tokens=16, prompt=32, block=512, requests=(1, 4, 16),
                        models=tuple(SHAPES), folder="")  # fmt: skip
    torch.set_num_threads(CORES)
    transformers.logging.set_verbosity_error()
    tables, same = [], {}
    under = Table(f"under {CAP:.0%} of the states, greedy", ("model, cap on, requests at once", "cap, MB", "tokens a second"))
    for name in options.models:
        table, same[name] = await beside(name, options)
        tables.append(table)
        with tempfile.TemporaryDirectory(dir=options.folder or None) as folder:
            under.rows += await capped(name, options, folder)
    configuration = {
        "texts": f"{options.tokens} tokens each ({options.capped_tokens} under a cap) behind {options.prompt} random ones",
        "repeats": f"median of {options.rounds} rounds, sides in turn",
        "greedy tokens up to where a text first differs": ", ".join(f"{name} {value:.1%}" for name, value in same.items()),
    }
    publish("bench_generate", __doc__, configuration, [*tables, under], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
