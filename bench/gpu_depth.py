"""Does throughput hold on a GPU when the model gets deeper and its memory does not?

    python bench/gpu_depth.py [--layers 4 8 16 32 48] [--width 2048] [--batch 32] [--parts 8] [--length 1024] [--share 0.5]
                              [--tile 4096] [--steps 2] [--write]

Models of 4 to 48 layers of one width under one cap, a share of the states of the shallowest, so that it holds none of them. The
vocabulary is so small that the head does not count. TFLOP/s of the blocks: 72 L d^2 + 12 L T d a token, without what is
recomputed, over the time of a whole step. Target: falls by less than 3% from the shallowest to the deepest.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace

from gpu_common import Speed, block_flops, engine_of, new_trainer, options_of
from gpu_peaks import Place, free, gemm_rate, link_rates
from gpu_record import Section

from asynctile.layers import GPT2Config

VOCAB = 256
COLUMNS = ("layers", "states GB", "s a step", "TFLOP/s of the blocks", "of the GEMM rate", "bound s", "of the bound", "waited",
           "up GB a layer", "note")  # fmt: skip


def config_of(options: Namespace, layers: int) -> GPT2Config:
    return GPT2Config(n_layer=layers, n_head=max(1, options.width // 64), n_embd=options.width, block_size=options.length,
                      vocab_size=VOCAB)  # fmt: skip


async def main(options: Namespace) -> None:
    place, section = Place(options.device), Section("depth", __doc__, options)
    depths = sorted(options.layers)
    shallow, tokens = config_of(options, depths[0]), options.batch * options.length
    cap = int(options.share * shallow.states_nbytes)
    peak, link = gemm_rate(place, options.precision), link_rates(place)
    free(place)
    section.configuration |= {
        "model": f"n_embd {options.width}, vocab {VOCAB}, {options.batch} sequences of {options.length} tokens, recompute",
        "cap": f"{cap / 1e9:.3f} GB, tile {options.tile}, the batch in {options.parts} parts",
        "GEMM rate": f"{peak / 1e12:.3f} TFLOP/s",
        "link": f"{link.both / 1e9:.1f} GB/s each way, both at once",
    }
    table = section.table("depth", *COLUMNS)
    rates: dict[int, float] = {}
    for depth in depths:
        config = config_of(options, depth)
        with section.row(table, depth, config.states_nbytes / 1e9):
            async with engine_of(options, device_memory=cap) as engine:
                trainer = await new_trainer(engine, config, options.tile, recompute=True, micro_batches=options.parts)
                speed = await Speed.of(trainer, options.batch, options.length, options.steps)
            up, down = speed.report.uploaded_bytes, speed.report.downloaded_bytes
            flops = block_flops(config, tokens, options.length)
            # A step that recomputes runs each block's forward pass, a third of it, once more.
            bound = max(flops * 4 / 3 / peak, up / link.both, down / link.both)
            rates[depth] = flops / speed.step_s
            section.add(table, depth, config.states_nbytes / 1e9, speed.step_s, rates[depth] / 1e12, rates[depth] / peak, bound,
                        bound / speed.step_s, speed.stall_s / speed.step_s, up / depth / 1e9)  # fmt: skip
    if {depths[0], depths[-1]} <= rates.keys():
        fall = 1 - rates[depths[-1]] / rates[depths[0]]
        section.headline(f"fall of TFLOP/s from {depths[0]} to {depths[-1]} layers", fall, 0.03, above=False)
        section.headline(f"TFLOP/s of the blocks, {depths[-1]} layers", rates[depths[-1]] / 1e12)
    section.end()


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, layers=(4, 8, 16, 32, 48), width=2048, batch=32, parts=8, length=1024, share=0.5,
                                tile=4096, steps=2)))  # fmt: skip
