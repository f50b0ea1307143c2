"""Compile the kernels of GPU and CPU that every part of bench/gpu.sh uses, once, before the parts are timed.

    python bench/gpu_warm.py [--device cuda:0]

Opens an engine in each precision, and prints how long that took and which libraries compute attention and biases.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace

from gpu_common import engine_of, options_of
from gpu_record import Section
from gpu_rows import WARM

PRECISIONS = ("bf16", "tf32", "fp32")


async def main(options: Namespace) -> None:
    section = Section("warm", __doc__, options)
    table = section.table("opened", "precision", "s", "note")
    for options.precision in PRECISIONS:
        with section.row(table, options.precision):
            start = time.perf_counter()
            async with engine_of(section, options, device_memory="1MiB"):
                section.add(table, options.precision, time.perf_counter() - start)
    print(f"attention: {section.configuration.get('attention')}\nbias: {section.configuration.get('bias')}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, WARM)))
