"""Small programs written by hand, of tiles of one size, and running them; for tests of operations of the host."""

from dataclasses import replace

import numpy as np

from asynctile.program.needs import demand_of
from asynctile.program.operation import HOST
from asynctile.program.program import Program
from asynctile.storage.tile import Tile

SHAPE = (32, 32)
NBYTES = 32 * 32 * 4


def on_host(operation):
    return replace(operation, device=HOST)


def standing(*names):
    return [Tile(name, SHAPE, persistent=True) for name in names]


def values(tiles):
    return {tile: np.random.default_rng(index).standard_normal(SHAPE, np.float32) for index, tile in enumerate(tiles)}


def program_of(*operations):
    program = Program("by hand")
    for operation in operations:
        program.add(operation)
    return program.finish()


async def run(engine, program, tiles, inputs=None):
    async def job():
        async with engine.exclusive():
            begun = await engine.start(program, demand_of([program], tiles), inputs or {})
            try:
                await begun.finish()
            except Exception as error:
                return error, {tile.name for tile in await begun.abandon()}

    return await engine.call(job())


def moved(engine, before=None):
    """(bytes up, bytes down), since `before`."""
    statistics = engine.statistics()
    up, down = statistics.uploaded_bytes, statistics.downloaded_bytes
    return (up, down) if before is None else (up - before[0], down - before[1])


async def prepared(engine, program, tiles):
    """Cut for `program`, with bytes in all `tiles`; returns them."""
    bytes_of = values(tiles)
    await engine.reserve(demand_of([program], tiles))
    await engine.store(bytes_of.items())
    return bytes_of


def late(tier):
    """Names of tiles that `tier` gets only when their operation is issued, from now on."""
    names, admit = [], tier.admit

    def watched(residencies, access):
        names.extend(one.name for one, how in zip(residencies, access, strict=True) if one.slot is None and how != "w")
        return admit(residencies, access)

    tier.admit = watched
    return names


async def launched(engine, operation, next_uses=None):
    """On the device's loop: through the tile coroutine, with ranks of one's own."""
    return await engine.assembly.lanes[operation.device].perform(operation, next_uses or [1] * len(operation.operands))


def watch_operations(engine, watch):
    """`watch(operation)` before every operation that any lane of `engine` performs; what it returns is called behind it."""
    for lane in set(engine.assembly.lanes.values()):
        lane.perform = _watched(lane.perform, watch)


def _watched(perform, watch):
    async def performed(entry, *args):
        after = watch(entry)
        event = await perform(entry, *args)
        if after is not None:
            after()
        return event

    return performed
