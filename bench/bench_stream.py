"""What does streaming cost, and are the bytes it moves the fewest possible?

    python bench/bench_stream.py [--rounds 5] [--steps 2] [--tile N] [--caps 0.25 0.10] [--write]

Caps of 25% and 10% of the states. The link carries BUSIER_NBYTES, which are constants, in 0.6 of the resident step. So its rate
follows the speed of the machine, and a step that moves more bytes does not get a faster link. For a step that moves exactly
these bytes, a perfect overlap hides the link, and no overlap gives 1 / 1.6 = 0.62 of the resident speed. The row "the slower
link alone" counts the bytes that the step really moves. Targets: with prefetch 2 at least 0.97 of the resident speed at 25% and
0.95 at 10%; bytes loaded at most 1.25 and 1.4 of the least possible under that cap (optimum.py). The cores that compute also
make the copies of `emulated`.

    python bench/bench_stream.py --against TREE [--starts 9] [--caps 0.25 0.10]

Seconds per step of another commit's package and of this one in turn, over the link that the other one's resident step sets
(bench/against.py). Target: no loss that the interval shows.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from against import compare, worker
from common import Side, Table, alternate, arguments, batch, program_of, publish, steps, target, trainer_on
from optimum import least_bytes, most_at

from asynctile import Engine
from asynctile.layers import GPT2Config, Trainer
from asynctile.layers.model import model_state_of

BATCH, LENGTH = 4, 512
CONFIG = GPT2Config(n_layer=12, n_head=8, n_embd=512, block_size=LENGTH, vocab_size=2048)
MODEL = (
    f"GPT-2, n_layer {CONFIG.n_layer}, n_embd {CONFIG.n_embd}, n_head {CONFIG.n_head}, vocab {CONFIG.vocab_size}, T {LENGTH}, "
    f"B {BATCH}, float32, recompute"
)
STATES = f"{CONFIG.states_nbytes / 1e6:.0f} MB"
LINK_SHARE = 0.6
#: By cap, the bytes of a step in the busier direction, as commit bab38d5 recorded them. They set the rate of the link: 246 MB/s
#: at 25% where a resident step takes 2.005 s, 343 MB/s at 10% where it takes 2.043 s.
BUSIER_NBYTES = {0.25: 296_284_200, 0.10: 419_952_680}
RESIDENT, STREAMED = "resident", "prefetch 2"
#: By cap, the least share of the resident speed.
LEAST = {0.25: 0.97, 0.10: 0.95}


async def engine_of(stack: AsyncExitStack, tile: int | None, **options: Any) -> Trainer:
    engine = await stack.enter_async_context(Engine(device="emulated", **options))
    return await trainer_on(engine, CONFIG, tile=tile)


@asynccontextmanager
async def opened(options: Namespace) -> AsyncIterator[dict[str, Side]]:
    """Yield the sides that a process of --against measures.

    options.rates: the link's rate for each cap, in bytes a second. Without rates there is only the resident side, which sets
    them.
    """
    inputs, tile, sides = batch(CONFIG, BATCH, LENGTH), options.tile or None, {}
    async with AsyncExitStack() as stack:
        if not options.rates:
            sides[RESIDENT] = steps(await engine_of(stack, tile), *inputs, options.steps)
        for share, rate in zip(options.caps, options.rates, strict=bool(options.rates)):
            cap = int(share * CONFIG.states_nbytes)
            free = await engine_of(stack, tile, device_memory=cap)
            sides[f"{share:.0%}, no link limit"] = steps(free, *inputs, options.steps)
            streamed = await engine_of(stack, tile, device_memory=cap, link_rate=rate)
            sides[f"{share:.0%}, {STREAMED}"] = steps(streamed, *inputs, options.steps)
        yield sides


def rate_of(share: float, resident_s: float) -> int:
    """Return the link's bytes a second under a cap of that share, where a resident step takes `resident_s`."""
    return int(BUSIER_NBYTES[share] / (LINK_SHARE * resident_s))


async def against(options: Namespace) -> None:
    """Compare both trees over the link that the old one sets."""
    passed = {"tile": options.tile, "caps": options.caps, "steps": options.steps, "rates": []}
    async with worker(options.against.resolve(), "bench_stream", passed) as old:
        await old.ready()
        sides = {name: partial(old.measure, name) for name in old.sides}
        await alternate(sides, 1)
        resident_s = (await alternate(sides, 3))[RESIDENT]
    rates = [rate_of(share, resident_s) for share in options.caps]
    link = ", ".join(f"{rate / 1e6:.0f} MB/s at {share:.0%}" for rate, share in zip(rates, options.caps, strict=True))
    await compare("bench_stream", __doc__, options, "s", {}, {"model": MODEL, "states": STATES, "link": link}, rates=rates)


async def main() -> None:
    options = arguments(__doc__, {"starts": 9, "rounds": 1, "steps": 1}, rounds=5, steps=2, tile=0, caps=(0.25, 0.10))
    if unknown := [f"{share:g}" for share in options.caps if share not in BUSIER_NBYTES]:
        sys.exit(f"--caps {' '.join(unknown)}: BUSIER_NBYTES has no bytes to set the link's rate; choose 0.25 or 0.1")
    if options.against:
        await against(options)
    else:
        await beside_resident(options)


async def beside_resident(options: Namespace) -> None:
    tokens, targets = batch(CONFIG, BATCH, LENGTH)
    tile = options.tile or None
    speed = Table("speed", ("cap", "link MB/s", "side", "s a step", "of resident", "stalled", "target"))
    moved = Table("bytes of a step", ("cap", "what", "MB", "of the least", "target"))
    used = 0
    for share in options.caps:
        cap = int(share * CONFIG.states_nbytes)
        label = f"{share:.0%}"
        async with AsyncExitStack() as stack:
            resident = await engine_of(stack, tile)
            used = model_state_of(resident.model).tiling.tile
            free = await engine_of(stack, tile, device_memory=cap)
            first = {RESIDENT: steps(resident, tokens, targets, options.steps)}
            await alternate(first, 1)
            resident_s = (await alternate(first, max(1, options.rounds // 2)))[RESIDENT]
            rate = rate_of(share, resident_s)
            streamed = await engine_of(stack, tile, device_memory=cap, link_rate=rate)
            waiting = await engine_of(stack, tile, device_memory=cap, link_rate=rate, prefetch=0)
            trainers = {RESIDENT: resident, "no link limit": free, STREAMED: streamed, "prefetch 0": waiting}
            sides = {name: steps(trainer, tokens, targets, options.steps) for name, trainer in trainers.items()}
            await alternate({name: side for name, side in sides.items() if name != RESIDENT}, 1)
            found = await alternate(sides, options.rounds)
            last = {name: await trainer.step(tokens, targets) for name, trainer in trainers.items()}
            for name, seconds in found.items():
                ratio, stalled = found[RESIDENT] / seconds, last[name].stall_s / seconds
                goal = target(ratio, LEAST[share]) if name == STREAMED else None
                speed.rows.append((label, rate / 1e6, name, seconds, ratio, stalled, goal))
            up, down = last[STREAMED].uploaded_bytes, last[STREAMED].downloaded_bytes
            link_s = max(up, down) / rate
            speed.rows.append((label, rate / 1e6, "the slower link alone", link_s, link_s / found[RESIDENT], None, None))
            moved.rows += await bytes_moved(streamed, share, up, down)
    configuration = {
        "model": MODEL,
        "states": STATES,
        "tile": used,
        "repeats": f"median of {options.rounds} rounds of {options.steps} steps, sides in turn",
    }
    publish("bench_stream", __doc__, configuration, [speed, moved], write=options.write)


async def bytes_moved(trainer: Trainer, share: float, up: int, down: int) -> list[tuple[Any, ...]]:
    """Return rows of the table: loads and write-backs, each relative to the least possible."""
    least = least_bytes(await program_of(trainer, BATCH, LENGTH), int(share * CONFIG.states_nbytes))
    most, label = most_at(share), f"{share:.0%}"
    goal = most and target(up / least.uploaded_nbytes, most, above=False)
    return [
        (label, "loaded", up / 1e6, up / least.uploaded_nbytes, goal),
        (label, "written back", down / 1e6, down / least.downloaded_nbytes, None),
    ]


if __name__ == "__main__":
    asyncio.run(main())
