"""`asynctile merge`: adds an adapter to the weights of its base, and writes one model.

saved_model.py finds both folders, asynctile/layers/merge.py computes and writes.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from asynctile.cli.display import bars
from asynctile.cli.figures import as_sizes
from asynctile.cli.interrupt import EXIT_STATUS, Interrupt
from asynctile.cli.saved_model import adapter_in, weights_in
from asynctile.cli.terminal import print_rows
from asynctile.layers.merge import merge
from asynctile.storage import documents
from asynctile.storage.sizes import format_size

__all__ = ["run"]


def run(given: dict[str, Any]) -> int:
    """Write the merged model and return the exit status."""
    base, adapter, final = weights_in(Path(given["base"])), adapter_in(Path(given["adapter"])), Path(given["out"])
    interrupt = Interrupt()
    with ExitStack() as stack:
        show = bars(stack)
        written = 0

        def progress(done: int, total: int) -> None:
            nonlocal written
            interrupt.check()
            written = total
            show("merging", done, total, as_sizes)

        work = asyncio.to_thread(partial(merge, base, adapter, final, given["dtype"], progress))
        interrupt.run(documents.finish(work))
    if interrupt.asked:
        return EXIT_STATUS
    print_rows([("base", str(base)), ("adapter", str(adapter)), ("model", f"{final}, {format_size(written)} of weights")])
    return 0
