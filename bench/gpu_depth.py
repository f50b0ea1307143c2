"""Does throughput hold on a GPU when the model gets deeper and its memory does not?

    python bench/gpu_depth.py [--layers 4 48 16 32 8] [--width 2048] [--batch 32] [--parts 4] [--length 1024] [--share 0.9]
                              [--tile 4096] [--steps 2] [--write]

Models of 4 to 48 layers of one width under one cap, a share of the states of the shallowest, so that it holds none of them. The
shallowest and the deepest come first. The vocabulary is so small that the head does not count. The measure is TFLOP/s of the
blocks: 72 L d^2 + 12 L T d a token, without recomputed work, over the time of a whole step. Target: it falls by less than 3%
from the shallowest to the deepest.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace

from gpu_common import Speed, block_flops, engine_of, new_trainer, options_of
from gpu_peaks import Place, free, gemm_rate, link_rates
from gpu_record import Section
from gpu_rows import DEPTH, FEW_TOKENS, deep

COLUMNS = ("layers", "states GB", "s a step", "TFLOP/s of the blocks", "of the GEMM rate", "bound s", "of the bound",
           "up GB a layer", "note")  # fmt: skip


async def main(options: Namespace) -> None:
    place, section = Place(options.device), Section("depth", __doc__, options)
    ends, tokens = (min(options.layers), max(options.layers)), options.batch * options.length
    peak, link = gemm_rate(place, options.precision), link_rates(place)
    free(place)
    section.configuration |= {
        "model": f"n_embd {options.width}, vocab {FEW_TOKENS}, {options.batch} sequences of {options.length} tokens, recompute",
        "cap": f"{(deep(options, ends[0]).cap or 0) / 1e9:.3f} GB, tile {options.tile}, the batch in {options.parts} parts",
        "GEMM rate": f"{peak / 1e12:.3f} TFLOP/s",
        "link": f"{link.both / 1e9:.1f} GB/s each way, both at once",
    }
    table = section.table("depth", *COLUMNS)
    rates: dict[int, float] = {}
    for depth in options.layers:
        row = deep(options, depth)
        states = row.config.states_nbytes / 1e9
        with section.row(table, depth, states):
            async with engine_of(section, options, device_memory=row.cap) as engine:
                speed = await Speed.of(await new_trainer(engine, row), row, options.steps)
            up, down = speed.report.uploaded_bytes, speed.report.downloaded_bytes
            flops = block_flops(row.config, tokens, options.length)
            # A step that recomputes runs each block's forward pass, a third of its FLOPs, once more.
            bound = max(flops * 4 / 3 / peak, up / link.both, down / link.both)
            rates[depth] = flops / speed.step_s
            section.add(table, depth, states, speed.step_s, rates[depth] / 1e12, rates[depth] / peak, bound,
                        bound / speed.step_s, up / depth / 1e9)  # fmt: skip
        if rates.keys() >= set(ends):
            fall = 1 - rates[ends[1]] / rates[ends[0]]
            section.headline(f"fall of TFLOP/s from {ends[0]} to {ends[1]} layers", fall, 0.03, above=False)
            section.headline(f"TFLOP/s of the blocks, {ends[1]} layers", rates[ends[1]] / 1e12)
    section.end()


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, DEPTH)))
