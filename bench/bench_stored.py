"""What does it cost on a CPU to keep matrices in bfloat16, as a file has them?

    python bench/bench_stored.py [--rounds 7] [--length 512] [--batch 8] [--tokens 24] [--layers 30] [--vocab 49152] [--write]

A LLaMA of the shape of SmolLM2-135M with random weights, saved in bfloat16 and loaded twice on `cpu`: with weights="float32",
and with weights="stored", which widens each tile as it is used. Measured: seconds of the logits of one sequence of --length
tokens, whose bits are compared; seconds of the loss of --batch such sequences, as `asynctile evaluate` computes it;
milliseconds of a token of one greedy text after 8 tokens; and the bytes of all tiles in RAM.
Targets: stored takes at most 1.1 times the seconds, and at most 0.51 of the bytes.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from common import Side, Table, arguments, in_turn, publish, target
from texts import GREEDY, prompts, write

from asynctile import Engine
from asynctile.layers import LlamaConfig, Model

#: The most of stored, relative to float32: seconds, and bytes.
SECONDS, BYTES = 1.1, 0.51


async def saved(folder: Path, config: LlamaConfig) -> Path:
    """Save a new model in bfloat16."""
    async with Engine("cpu") as engine:
        await (await Model.create(engine, config, seed=1)).save_pretrained(folder, dtype="bfloat16")
    return folder


def logits_of(model: Model, tokens: Any) -> Side:
    async def side() -> float:
        began = time.perf_counter()
        await model.logits(tokens)
        return time.perf_counter() - began

    return side


def loss_of(model: Model, tokens: Any) -> Side:
    async def side() -> float:
        began = time.perf_counter()
        await model.loss(tokens, tokens)
        return time.perf_counter() - began

    return side


def text_of(server: Any, config: LlamaConfig, count: int) -> Side:
    async def side() -> float:
        (prompt,) = prompts(config, 1, 8)
        _, times = await write(server, prompt, count, **GREEDY)
        return (times[-1] - times[0]) / (len(times) - 1) * 1e3

    return side


async def main() -> None:
    options = arguments(__doc__, rounds=7, length=512, batch=8, tokens=24, layers=30, vocab=49152)
    config = LlamaConfig(
        n_layer=options.layers, hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=options.vocab, block_size=2048, rope_theta=100000.0, tie_word_embeddings=True)  # fmt: skip
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, (options.batch, options.length))
    with TemporaryDirectory() as root:
        folder = await saved(Path(root) / "model", config)
        async with AsyncExitStack() as stack:
            logits, losses, texts, nbytes, bits = {}, {}, {}, {}, set()
            for weights in ("float32", "stored"):
                engine = await stack.enter_async_context(Engine("cpu"))
                model = await Model.from_pretrained(engine, folder, weights=weights)
                nbytes[weights] = engine.statistics().host_used_bytes
                bits.add((await model.logits(tokens[:1])).tobytes())
                logits[weights], losses[weights] = logits_of(model, tokens[:1]), loss_of(model, tokens)
                server = await stack.enter_async_context(model.serve(most=1))
                texts[weights] = text_of(server, config, options.tokens)
            found = []
            for sides in (logits, losses, texts):
                await in_turn(sides, 2)  # warm up: programs are recorded and scheduled
                found.append(await in_turn(sides, options.rounds))
    configuration = {
        "model": f"LLaMA, {config.summary}, on cpu",
        "repeats": f"medians of {options.rounds} rounds, sides in turn; relative: the median of the rounds' ratios",
        "bits of the logits are equal": len(bits) == 1,
    }
    what = (f"logits of {options.length} tokens, s", f"loss of {options.batch * options.length:,} tokens, s",
            "a token of a text, ms")  # fmt: skip
    publish("bench_stored", __doc__, configuration, [results(what, found, nbytes)], write=options.write)


def results(what: tuple[str, ...], found: list[dict[str, list[float]]], nbytes: dict[str, int]) -> Table:
    table = Table("kept in float32 and as stored", ("", "float32", "stored", "relative", "target"))
    for name, sides in zip(what, found, strict=True):
        relative = statistics.median(b / a for a, b in zip(sides["float32"], sides["stored"], strict=True))
        medians = [statistics.median(sides[weights]) for weights in ("float32", "stored")]
        table.rows.append((name, *medians, relative, target(relative, SECONDS, above=False)))
    relative = nbytes["stored"] / nbytes["float32"]
    table.rows.append(("tiles in RAM, MB", nbytes["float32"] / 1e6, nbytes["stored"] / 1e6, relative,
                       target(relative, BYTES, above=False)))  # fmt: skip
    return table


if __name__ == "__main__":
    asyncio.run(main())
