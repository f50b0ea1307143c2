"""Which tile size is worth its memory? The curve behind the ladder of FINE in asynctile/program/grain.py.

    python bench/bench_tiles.py [--rounds 5] [--tiles 128 192 256 320 384 512 640 768 1024] [--write]

One block (n_embd 768, T=512, B=4, and a vocabulary that does not count) on `cpu`, trained with each tile. The table gives the
speed; the share of a step that the engine's own work for the operations would take (operations x microseconds of an empty one,
measured here as in bench_overhead.py); and the floor, which is the cost of a larger tile.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from bench_overhead import resident_overhead_us
from common import Table, alternate, arguments, batch, publish, step_flops, steps, tile_gemm_gflops, trainer_on

from asynctile import Engine
from asynctile.layers import GPT2Config
from asynctile.layers.activations import kept_if
from asynctile.layers.model import model_state_of
from asynctile.program.grain import FINE
from asynctile.program.needs import demand_of

BATCH, LENGTH = 4, 512
CONFIG = GPT2Config(n_layer=1, n_head=12, n_embd=768, block_size=LENGTH, vocab_size=256)


async def main() -> None:
    tiles = (128, 192, 256, 320, 384, 512, 640, 768, 1024)
    options = arguments(__doc__, rounds=5, steps=3, tiles=tiles)
    overhead_us = await resident_overhead_us()
    tokens, targets = batch(CONFIG, BATCH, LENGTH)
    flops = step_flops(CONFIG, tokens.size, LENGTH)
    table = Table(
        "one block, forward and backward with AdamW",
        ("tile", "operations", "ms a step", "tokens/s", "GFLOP/s", "tile GEMM", "overhead share", "floor MB", "of best"),
    )
    async with AsyncExitStack() as stack:
        trainers = {}
        for tile in options.tiles:
            engine = await stack.enter_async_context(Engine(device="cpu"))
            trainers[tile] = await trainer_on(engine, CONFIG, tile=tile, recompute=False)
        sides = {f"tile {tile}": steps(trainer, tokens, targets, options.steps) for tile, trainer in trainers.items()}
        await alternate(sides, 1)
        found = dict(zip(trainers, (await alternate(sides, options.rounds)).values(), strict=True))
    best = min(found.values())
    for tile, trainer in trainers.items():
        seconds, state = found[tile], model_state_of(trainer.model)
        program, parameters = state.program("step", state.tiling.rows(BATCH, LENGTH), kept_if(False, CONFIG)), state.parameters
        count = sum(1 for _ in program.operations())
        floor = demand_of([program], parameters.states()).floor_nbytes
        gemm = tile_gemm_gflops(_gemm_shape(tile), 0.2)
        table.rows.append((
            tile, count, seconds * 1e3, tokens.size / seconds, flops / seconds / 1e9, gemm,
            count * overhead_us * 1e-6 / seconds, floor / 1e6, best / seconds))  # fmt: skip
    configuration = {
        "model": f"GPT-2, n_layer 1, n_embd {CONFIG.n_embd}, n_head {CONFIG.n_head}, vocab {CONFIG.vocab_size}, "
        f"T {LENGTH}, B {BATCH}, float32, activations kept",
        "empty operation": f"{overhead_us:.1f} us",
        "default": f"the largest of {', '.join(map(str, FINE.ladder))} whose floor is at most 10% of the states",
        "repeats": f"median of {options.rounds} rounds of {options.steps} steps, tiles in turn",
    }
    publish("bench_tiles", __doc__, configuration, [table], write=options.write)


def _gemm_shape(tile: int) -> tuple[int, int, int]:
    """Return rows, inner size and columns of most of the block's products with this tile."""
    return min(tile, LENGTH), min(tile, CONFIG.n_embd), min(tile, CONFIG.n_embd)


if __name__ == "__main__":
    asyncio.run(main())
