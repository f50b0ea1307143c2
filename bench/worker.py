"""The process in which bench/against.py measures one tree: the package of the tree, with this tree's benchmark.

    PYTHONPATH=TREE python bench/worker.py BENCH OPTIONS

Opens the sides that `opened(OPTIONS)` of the module BENCH yields (OPTIONS: JSON). Each line on standard input is a JSON string
with the name of a side: the process measures it and answers with a line of JSON. Between lines it waits for the pipe and uses
no CPU; the answer includes the CPU time that it used all the same. It ends with its input. All other output goes to standard
error.
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
