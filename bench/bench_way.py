"""Through how many functions and files does a step go, and a token of a text?

    python bench/bench_way.py [--write]
    PYTHONPATH=TREE python bench/bench_way.py       another commit's package

A small GPT-2 trains and writes on `cpu`. A profiler in all threads collects the functions of asynctile that are entered: in a
step that decides its schedule and runs it by coroutines, in the next one, which makes it ready to be played, in a later one by
coroutines, in a played one, and in texts likewise. The numbers depend on the code alone.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from other_tree import add_missing_names

if "PYTHONPATH" in os.environ:  # it may name another commit's package
    add_missing_names()

from common import Table, arguments, batch, publish

import asynctile
from asynctile import Engine
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer

PACKAGE = Path(asynctile.__file__).parent
#: layers/ and storage/ are links inside the package.
ROOMS = tuple({folder.resolve() for folder in (PACKAGE, PACKAGE / "layers", PACKAGE / "storage")})
CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=64, block_size=64, vocab_size=256)
NEW_TOKENS = 8
#: What a call does, by name.
Calls = dict[str, Callable[[], Any]]


class Way:
    """The functions of asynctile that any thread enters while it is open."""

    def __init__(self) -> None:
        self._entered: set[CodeType] | None = None

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call; the profiler of every thread."""
        if event == "call" and self._entered is not None:
            self._entered.add(frame.f_code)

    @contextmanager
    def open(self) -> Iterator[list[CodeType]]:
        """Yield a list that has the functions at the end. Comprehensions and lambdas belong to the functions around them."""
        found: list[CodeType] = []
        self._entered = entered = set()
        yield found
        self._entered = None
        found += [code for code in entered if not code.co_name.startswith("<") and ours(code)]


def ours(code: CodeType) -> bool:
    path = Path(code.co_filename).resolve()
    return any(room in path.parents for room in ROOMS)


@asynccontextmanager
async def calls() -> AsyncIterator[Calls]:
    """Open an engine and yield what is counted, in order."""
    async with Engine("cpu") as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, seed=1), AdamW(lr=1e-4))
        inputs = batch(CONFIG, 2, CONFIG.block_size)

        async def step(plays: bool) -> None:
            engine.plays = plays
            await trainer.step(*inputs)

        async def text(plays: bool) -> None:
            engine.plays = plays
            async for _ in trainer.model.generate(np.arange(8), max_new_tokens=NEW_TOKENS, temperature=0.0):
                pass

        yield {
            f"{name}, {how}": (lambda call=call, plays=plays: call(plays))
            for name, call in (("Trainer.step", step), ("model.generate", text))
            for how, plays in (("first", True), ("second", True), ("by coroutines", False), ("played", True))
        }


async def main() -> None:
    options = arguments(__doc__)
    way = Way()
    threading.setprofile(way.note)  # of threads that start from here on
    sys.setprofile(way.note)
    table = Table("functions of asynctile, and their files", ("call", "files", "functions"))
    async with calls() as found:
        for name, call in found.items():
            if name.endswith("played"):
                await call()  # to play again after coroutines, a program runs once more
                await call()
            with way.open() as functions:
                await call()
            table.rows.append((name, len({code.co_filename for code in functions}), len(functions)))
    sys.setprofile(None)
    publish("bench_way", __doc__, {"model": f"GPT-2, {CONFIG.summary}"}, [table], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
