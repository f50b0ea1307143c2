"""The process in which bench/against.py measures one tree: its package, this tree's benchmark.

    PYTHONPATH=TREE python bench/worker.py BENCH OPTIONS

Opens the sides that `opened(OPTIONS)` of the module BENCH yields (OPTIONS: JSON), then measures one for each line that comes on
its standard input, a JSON string with the name, and answers in a line of JSON. Between two it waits for the pipe and uses no
CPU; how much it used all the same stands in the answer. It ends with its input. What else is printed goes to the error output.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from argparse import Namespace
from typing import Any, TextIO

from other_tree import add_missing_names


def tell(answers: TextIO, **answer: Any) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


async def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    bench, options = sys.argv[1:]
    add_missing_names()
    async with importlib.import_module(bench).opened(Namespace(**json.loads(options))) as sides:
        tell(answers, package=sys.modules["asynctile"].__file__, sides=list(sides))
        began, used = time.monotonic(), time.process_time()
        while line := await asyncio.to_thread(sys.stdin.readline):
            idle = {"idle_s": time.monotonic() - began, "idle_cpu_s": time.process_time() - used}
            tell(answers, value=await sides[json.loads(line)](), **idle)
            began, used = time.monotonic(), time.process_time()


if __name__ == "__main__":
    asyncio.run(main())
