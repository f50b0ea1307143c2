"""What is the largest model that trains on this machine, and how fast does it train?

    python bench/gpu_largest.py [--width 4096] [--batch 16] [--length 1024] [--host-share 0.85] [--device-share 0.9]
                                [--layers N] [--host-mib N] [--write]

The number of layers is computed: a step needs a + b L bytes, known from what one and two layers need, and RAM offers
`--host-share` of its available bytes, or `--host-mib`. Then that model trains: three steps to settle, and one that is measured.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace

import psutil
from gpu_common import Speed, engine_of, model_flops, new_trainer, options_of
from gpu_peaks import Place, free, gemm_rate, link_rates
from gpu_record import Section
from gpu_rows import LARGEST, engine_name, large, largest

GIB = 1 << 30


def device_bytes(place: Place, share: float) -> int:
    """Return a share of the device's free memory; without a GPU, of an eighth of RAM."""
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
    layers = options.layers or largest(options, cap, host)
    row = large(options, cap, max(1, layers))
    config = row.config
    section.configuration |= {
        "memory": f"device {cap / GIB:.1f} GiB, RAM {host / GIB:.1f} GiB of {psutil.virtual_memory().total / GIB:.1f}",
        "model": f"n_embd {options.width}, {config.n_head} heads, vocab {options.vocab}, {options.batch} sequences of "
        f"{options.length} tokens, tile {row.tile}, recompute",
        "GEMM rate": f"{peak / 1e12:.3f} TFLOP/s",
        "link": f"{link.both / 1e9:.1f} GB/s each way, both at once",
    }
    made = section.table("made", "layers", "parameters, 1e9", "states GB", "s to make it")
    table = section.table("the largest", "layers", "parameters, 1e9", "s a step", "TFLOP/s", "of the GEMM rate", "bound s",
                          "of the bound", "up GB", "down GB", "note")  # fmt: skip
    size = config.parameter_count / 1e9
    print(f"{layers} layers, {size:.2f}e9 parameters", flush=True)
    with section.row(table, layers, size):
        if not layers:
            needed = row.needs(engine_name(options), options.precision)[1]
            raise MemoryError(f"one layer needs {needed / GIB:.1f} GiB of RAM, and only {host / GIB:.1f} are available")
        start = time.perf_counter()
        async with engine_of(section, options, device_memory=cap, host_memory=host) as engine:
            trainer = await new_trainer(engine, row)
            section.add(made, layers, size, config.states_nbytes / 1e9, time.perf_counter() - start)
            speed = await Speed.of(trainer, row, 1)
        flops = model_flops(config, row.tokens, options.length)
        up, down = speed.report.uploaded_bytes, speed.report.downloaded_bytes
        bound = max(flops * 4 / 3 / peak, up / link.both, down / link.both)
        rate = flops / speed.step_s
        section.add(table, layers, size, speed.step_s, rate / 1e12, rate / peak, bound, bound / speed.step_s, up / 1e9,
                    down / 1e9)  # fmt: skip
        section.headline("the largest model that trained, 1e9 parameters", size)
        section.headline("its TFLOP/s", rate / 1e12)
    section.end()


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, LARGEST)))
