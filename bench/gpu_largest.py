"""What is the largest model that trains on this machine, and how fast?

    python bench/gpu_largest.py [--width 4096] [--batch 16] [--length 1024] [--host-share 0.85] [--device-share 0.9]
                                [--layers N] [--write]

The number of layers is found by arithmetic: the memory that a step needs is a + b L, by the plans of one and of two layers, and
RAM gives `--host-share` of what is available. Then that model trains: two steps to settle and one that counts.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace

import psutil
from gpu_common import Speed, engine_name, engine_of, layers_in, model_flops, new_trainer, options_of, tile_under
from gpu_peaks import Place, free, gemm_rate, link_rates
from gpu_record import Section

from asynctile.layers import GPT2Config
from asynctile.layers.plan import plan_step

VOCAB = 50257
GIB = 1 << 30


def config_of(options: Namespace, layers: int) -> GPT2Config:
    heads = max(1, options.width // 128)
    return GPT2Config(n_layer=layers, n_head=heads, n_embd=options.width, block_size=options.length, vocab_size=options.vocab)


def device_bytes(place: Place, share: float) -> int:
    """A share of the device's free memory; on no GPU of RAM."""
    if not place.on_gpu:
        return int(share * psutil.virtual_memory().available / 8)
    import torch

    return int(share * torch.cuda.mem_get_info(place.where)[0])


async def main(options: Namespace) -> None:
    place, section = Place(options.device), Section("largest", __doc__, options)
    peak, link = gemm_rate(place, options.precision), link_rates(place)
    free(place)
    cap = options.device_mib << 20 or device_bytes(place, options.device_share)
    host = options.host_mib << 20 or int(options.host_share * psutil.virtual_memory().available)
    tile = options.tile or tile_under(options, config_of(options, 1), cap, 0.1)

    def needed(layers: int) -> int:
        return plan_step(config_of(options, layers), batch_size=options.batch, seq_len=options.length, tile=tile,
                         device=engine_name(options), device_memory=cap, precision=options.precision).host_bytes  # fmt: skip

    layers = options.layers or layers_in(host, needed)
    config = config_of(options, max(1, layers))
    section.configuration |= {
        "memory": f"device {cap / GIB:.1f} GiB, RAM {host / GIB:.1f} GiB of {psutil.virtual_memory().total / GIB:.1f}",
        "model": f"n_embd {options.width}, {config.n_head} heads, vocab {options.vocab}, {options.batch} sequences of "
        f"{options.length} tokens, tile {tile}, recompute",
        "GEMM rate": f"{peak / 1e12:.3f} TFLOP/s",
        "link": f"{link.both / 1e9:.1f} GB/s each way, both at once",
    }
    table = section.table("the largest", "layers", "parameters, 1e9", "states GB", "s to make it", "s a step", "TFLOP/s",
                          "of the GEMM rate", "bound s", "of the bound", "up GB", "down GB", "note")  # fmt: skip
    size = config.parameter_count / 1e9
    print(f"{layers} layers, {size:.2f}e9 parameters", flush=True)
    with section.row(table, layers, size):
        if not layers:
            raise MemoryError(f"one layer needs {needed(1) / GIB:.1f} GiB of RAM, and {host / GIB:.1f} are to be had")
        start = time.perf_counter()
        async with engine_of(options, device_memory=cap, host_memory=host) as engine:
            trainer = await new_trainer(engine, config, tile, recompute=True)
            made_s = time.perf_counter() - start
            speed = await Speed.of(trainer, options.batch, options.length, 1)
        flops = model_flops(config, options.batch * options.length, options.length)
        up, down = speed.report.uploaded_bytes, speed.report.downloaded_bytes
        bound = max(flops * 4 / 3 / peak, up / link.both, down / link.both)
        rate = flops / speed.step_s
        section.add(table, layers, size, config.states_nbytes / 1e9, made_s, speed.step_s, rate / 1e12, rate / peak, bound,
                    bound / speed.step_s, up / 1e9, down / 1e9)  # fmt: skip
        section.headline("the largest model that trained, 1e9 parameters", size)
        section.headline("its TFLOP/s", rate / 1e12)
    section.end()


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, width=4096, batch=16, length=1024, vocab=VOCAB, host_share=0.85, device_share=0.9,
                                host_mib=0, device_mib=0, layers=0, tile=0)))  # fmt: skip
