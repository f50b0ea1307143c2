"""Does a token take longer the further its text has come?

    python bench/bench_context.py [--rounds 5] [--tokens 24] [--block 512] [--contexts 8 480] [--widths 64 128 512] [--write]

One text at a time on `cpu`, all in RAM: tokens after prompts of the lengths --contexts, for a GPT-2 of 4 layers and each width.
The first token includes computing its prompt and has a column of its own. Two more columns compare: the time of a token without
a cache, with its whole window recomputed, and a lower bound, the bytes of the weights and of the cache at the rate at which
this machine's cores can read that many bytes repeatedly. Target: at the longest context at most 1.5 times the time at the
shortest.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from typing import Any

from common import Table, arguments, in_turn, publish, target
from texts import GREEDY, cache_nbytes, prompts, read_rate, weights_nbytes, write

from asynctile import Engine
from asynctile.layers import GPT2, GPT2Config

LAYERS, HEAD, VOCAB = 4, 32, 256
#: The most time at the longest context, relative to the shortest.
MOST = 1.5


class Texts:
    """A side: one text of `count` tokens after a prompt of `context` tokens.

    Per measurement: first, milliseconds to the first token; anew, milliseconds per token without a cache.
    """

    def __init__(self, model: GPT2, server: Any, context: int, count: int) -> None:
        self.config = model.config
        self.context = context
        self.first: list[float] = []
        self.anew: list[float] = []
        self._model = model
        self._server = server
        self._prompt = prompts(model.config, 1, context)
        self._count = count

    async def ms(self) -> float:
        """Return milliseconds per token, from the first to the last."""
        began = time.perf_counter()
        _, times = await write(self._server, self._prompt[0], self._count, **GREEDY)
        self.first.append((times[0] - began) * 1e3)
        anew = [await self._logits() for _ in range(3)]
        self.anew.append(statistics.median(anew))
        return (times[-1] - times[0]) / (len(times) - 1) * 1e3

    async def _logits(self) -> float:
        began = time.perf_counter()
        await self._model.logits(self._prompt)
        return (time.perf_counter() - began) * 1e3


async def main() -> None:
    options = arguments(__doc__, rounds=5, tokens=24, block=512, contexts=(8, 480), widths=(64, 128, 512))
    async with AsyncExitStack() as stack:
        texts: dict[str, Texts] = {}
        for width in options.widths:
            config = GPT2Config(n_layer=LAYERS, n_head=width // HEAD, n_embd=width, block_size=options.block, vocab_size=VOCAB)
            engine = await stack.enter_async_context(Engine("cpu"))
            model = await GPT2.create(engine, config, seed=1)
            server = await stack.enter_async_context(model.serve(most=1))
            for context in options.contexts:
                texts[f"width {width}, context {context}"] = Texts(model, server, context, options.tokens)
        sides = {name: one.ms for name, one in texts.items()}
        await in_turn(sides, 2)  # warm up: programs are recorded and scheduled
        for one in texts.values():
            one.first, one.anew = [], []
        found = await in_turn(sides, options.rounds)
    configuration = {
        "models": f"GPT-2, {LAYERS} layers, heads of {HEAD}, vocabulary {VOCAB}, block_size {options.block}, float32, on cpu",
        "repeats": f"median of {options.rounds} rounds of {options.tokens} tokens, sides in turn",
    }
    publish("bench_context", __doc__, configuration, [results(texts, found)], write=options.write)


def results(texts: dict[str, Texts], found: dict[str, list[float]]) -> Table:
    """Return the table. found: milliseconds per token of each side, one value per round."""
    table = Table("a token, ms", ("text", "with a cache", "of the shortest", "target", "first token", "without a cache",
                                  "bound: bytes of weights and cache"))  # fmt: skip
    shortest = {one.config.n_embd: name for name, one in reversed(texts.items())}
    longest = {one.config.n_embd: name for name, one in texts.items()}
    for name, one in texts.items():
        width = one.config.n_embd
        times = statistics.median(
            own / least for own, least in zip(found[name], found[shortest[width]], strict=True))  # fmt: skip
        nbytes = weights_nbytes(one.config) + cache_nbytes(one.config, one.context)
        goal = target(times, MOST, above=False) if name == longest[width] else None
        table.rows.append((name, statistics.median(found[name]), times, goal, statistics.median(one.first),
                           statistics.median(one.anew), nbytes / read_rate(nbytes) * 1e3))  # fmt: skip
    return table


if __name__ == "__main__":
    asyncio.run(main())
