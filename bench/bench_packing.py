"""What does packing short chats into rows save? A pass over the same examples, packed and one a row.

    python bench/bench_packing.py [--rounds 5] [--chats 200] [--seq-len 512] [--batch 8] [--write]

A small GPT-2 on `cpu` trains on examples of 20 to 160 tokens, of which the second half is an answer. Packed: the rows of
`asynctile train`. Padded: one example a row, where examples of like length share a batch, and a batch has the least of four
lengths that takes it, which is what `asynctile train` did before. Tokens of examples count, padding does not.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
from common import Side, Table, alternate, arguments, publish, trainer_on

from asynctile import Engine
from asynctile.layers import GPT2Config, Trainer
from asynctile.layers.example_batches import ExampleBatches
from asynctile.layers.examples import Example, Examples, keep_examples
from asynctile.layers.text import TextSource
from asynctile.layers.tokenizer import ByteTokenizer

SHORTEST, LONGEST = 20, 160
CONFIG = GPT2Config(n_layer=4, n_head=4, n_embd=256, block_size=1024, vocab_size=4096)


def chats(count: int) -> list[Example]:
    """Return examples of random tokens and lengths."""
    random = np.random.default_rng(1)
    lengths = random.integers(SHORTEST, LONGEST + 1, count)
    return [Example(random.integers(1, CONFIG.vocab_size, n).astype(np.uint16), np.arange(n) >= n // 2) for n in lengths]


def padded(examples: Sequence[Example], size: int, longest: int) -> list[tuple[Any, Any]]:
    """Return batches of one example a row."""
    found = []
    ordered = sorted(examples, key=lambda example: len(example.ids))
    for first in range(0, len(ordered), size):
        part = ordered[first : first + size]
        most = max(len(example.ids) for example in part) - 1
        length = next(n for n in (-(-longest // 8), -(-longest // 4), -(-longest // 2), longest) if most <= n)
        tokens, targets = np.zeros((size, length), np.int64), np.full((size, length), -100, np.int64)
        for row, (ids, answers) in enumerate(part):
            tokens[row, : len(ids) - 1] = ids[:-1]
            targets[row, : len(ids) - 1] = np.where(answers[1:], ids[1:].astype(np.int64), -100)
        found.append((tokens, targets))
    return found


def packed(examples: Sequence[Example], size: int, longest: int) -> list[tuple[Any, Any, Any]]:
    """Return the batches of one pass of `asynctile train`."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "chats.txt").write_text("as many as there are", encoding="utf-8")
        source, kept = TextSource(Path(folder, "chats.txt")), Path(folder, "kept")
        file = keep_examples(source, ByteTokenizer(), kept, {}, longest, examples)
        batches = ExampleBatches(Examples(file, 0, len(file)), size, longest, seed=1)
        return [batches.batch(number) for number in range(batches.of_pass)]  # type: ignore[misc]


def a_pass(trainer: Trainer, batches: Sequence[tuple[Any, ...]]) -> Side:
    """Return a side for `alternate` that measures the seconds of a step on each batch."""

    async def side() -> float:
        begun_s = time.perf_counter()
        for batch in batches:
            await trainer.step(*batch)
        return time.perf_counter() - begun_s

    return side


async def main() -> None:
    options = arguments(__doc__, rounds=5, chats=200, seq_len=512, batch=8)
    examples = chats(options.chats)
    given: dict[str, list[Any]] = {"packed": packed(examples, options.batch, options.seq_len),
                                   "padded": padded(examples, options.batch, options.seq_len)}  # fmt: skip
    tokens = sum(len(example.ids) - 1 for example in examples)
    async with AsyncExitStack() as stack:
        sides = {}
        for name, batches in given.items():
            engine = await stack.enter_async_context(Engine(device="cpu"))
            sides[name] = a_pass(await trainer_on(engine, CONFIG, recompute=False), batches)
        await alternate(sides, 1)
        found = await alternate(sides, options.rounds)
    table = Table(f"a pass over {options.chats} chats of {tokens:,} tokens",
                  ("rows", "steps", "shapes", "padding", "s a pass", "tokens/s", "of padded"))  # fmt: skip
    for name, batches in given.items():
        places = sum(batch[0].size for batch in batches)
        table.rows.append((name, len(batches), len({batch[0].shape for batch in batches}), 1 - tokens / places, found[name],
                           tokens / found[name], found["padded"] / found[name]))  # fmt: skip
    configuration = {
        "model": f"GPT-2, n_layer {CONFIG.n_layer}, n_embd {CONFIG.n_embd}, vocab {CONFIG.vocab_size}, float32, "
        "activations kept",
        "data": f"{options.chats} examples of {SHORTEST} to {LONGEST} random tokens, rows of {options.seq_len}, B "
        f"{options.batch}",
        "repeats": f"median of {options.rounds} passes each, in turn",
    }
    publish("bench_packing", __doc__, configuration, [table], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
