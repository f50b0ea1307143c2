"""Small programs written by hand over tiles of one size, and ways to run them; for tests of host operations."""

from dataclasses import replace

import numpy as np

from asynctile.program.needs import demand_of
from asynctile.program.operation import HOST
from asynctile.program.program import Program
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile
from tests.inside_engine import device_of

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
        async with runtime_of(engine).exclusive():
            begun = await runtime_of(engine).start(program, demand_of([program], tiles), inputs or {})
            try:
                await begun.finish()
            except Exception as error:
                return error, {tile.name for tile in await begun.abandon()}

    return await runtime_of(engine).call(job())


def moved(engine, before=None):
    """Return (bytes uploaded, bytes downloaded), counted from `before` if it is given."""
    statistics = engine.statistics()
    up, down = statistics.uploaded_bytes, statistics.downloaded_bytes
    return (up, down) if before is None else (up - before[0], down - before[1])


async def prepared(engine, program, tiles):
    """Reserve memory for `program`, fill all `tiles` and return their values."""
    bytes_of = values(tiles)
    await runtime_of(engine).reserve(demand_of([program], tiles))
    await runtime_of(engine).store(bytes_of.items())
    return bytes_of


def enqueued(engine):
    """Return a list that collects every operation which the device is asked to run from now on, on itself or on the host."""
    found, device = [], device_of(engine)
    true = device.launch

    def launch(operation, *args):
        found.append(operation)
        return true(operation, *args)

    device.launch = launch
    return found
