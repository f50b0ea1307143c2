"""Operations of the host among those of a device: bits, traffic over the link, content of tiers; order: test_host_order.py.

Long because nearly every test needs the mixture of operations, places and tiers at the top of the file.
"""

import random
from dataclasses import replace

import numpy as np
import pytest

from asynctile import Engine
from asynctile.cli.stress.place import StressEngine, draw_place
from asynctile.cli.stress.writer import write_program
from asynctile.measure.simulate import simulate
from asynctile.ops import adamw, add, copy, fill, gelu, gemm
from asynctile.program.needs import demand_of
from asynctile.program.operation import NO_NUMBER
from asynctile.program.program import AT_HOST, Program
from asynctile.share import runtime_of
from asynctile.storage.residency import CLEAN, DIRTY, STORED
from asynctile.storage.tile import NEVER, Tile
from tests.by_hand import (
    NBYTES,
    SHAPE,
    moved,
    on_host,
    prepared,
    program_of,
    run,
    standing,
    values,
)
from tests.laws import covering, law
from tests.matmul import Matmul, product_in_ram

#: States in which a tile has a slot.
IN_A_SLOT = (CLEAN, DIRTY)
#: Which of the products (i, j, k) of a Matmul run on the host.
MIXTURES = {
    "all": lambda i, j, k: True,
    "every other": lambda i, j, k: (i + j + k) % 2 == 0,
    "the last of a sum": lambda i, j, k: k == 3,
    "the first of a sum": lambda i, j, k: k == 0,
    "a few": lambda i, j, k: (i, j, k) in {(0, 0, 2), (1, 3, 0), (3, 3, 3)},
}
#: Slots of the device, slots of RAM over a folder (None: no cap and no folder), prefetch.
PLACES = [(3, None, 0), (5, None, 2), (20, None, 8), (60, None, 2), (3, 3, 2), (6, 5, 0), (6, 20, 2), (20, 4, 8), (60, 3, 2)]


def folder_of(place, tmp_path):
    return {} if place[1] is None else {"host_memory": place[1] * 4096, "spill": tmp_path}


@pytest.mark.parametrize(("place", "mixture"), covering(PLACES, MIXTURES))
async def test_a_program_gives_the_same_bits_wherever_its_operations_run(mixture, place, tmp_path):
    expected, work = await product_in_ram(Matmul()), Matmul(on_host=mixture)
    options = folder_of(place, tmp_path)
    async with Engine("emulated", device_memory=place[0] * NBYTES, prefetch=place[2], **options) as engine:
        await work.prepare(engine)
        for _ in range(3):
            await work.run(engine)
        assert np.array_equal(await work.result(engine), expected)
        statistics = engine.statistics()
        await runtime_of(engine).release(work.standing())
        after = engine.statistics()
    assert statistics.device_peak_bytes <= place[0] * NBYTES
    assert place[1] is None or statistics.host_peak_bytes <= place[1] * 4096
    assert (after.device_used_bytes, after.host_used_bytes, after.spill_used_bytes) == (0, 0, 0)


@pytest.mark.parametrize(("place", "mixture"), covering(PLACES, ["every other", "the last of a sum"]))
async def test_a_simulated_run_moves_the_bytes_of_a_real_one(mixture, place, tmp_path):
    work, twin = (Matmul(on_host=MIXTURES[mixture]) for _ in range(2))
    options = folder_of(place, tmp_path)
    async with Engine("emulated", device_memory=place[0] * NBYTES, prefetch=place[2], **options) as engine:
        engine.plays = False
        await work.prepare(engine)
        await work.run(engine)
        first = engine.statistics()
        await work.run(engine)
        second = engine.statistics()
    traffic = simulate(twin.program, twin.standing(), device_memory=place[0] * NBYTES, prefetch=place[2],
                       host_memory=options.get("host_memory"), spill=bool(options))  # fmt: skip
    for name in ("uploaded", "downloaded", "spill_read", "spill_written"):
        assert getattr(traffic, f"{name}_nbytes") == getattr(second, f"{name}_bytes") - getattr(first, f"{name}_bytes"), name
    assert traffic.device_peak_nbytes == second.device_peak_bytes


@pytest.mark.parametrize("spilled", [True, False])
async def test_if_ram_is_the_device_the_place_of_an_operation_means_nothing(spilled, tmp_path):
    expected, work = await product_in_ram(Matmul()), Matmul(on_host=MIXTURES["every other"])
    options = {"host_memory": 3 * 4096, "spill": tmp_path} if spilled else {}
    async with Engine("cpu", **options) as engine:
        await work.prepare(engine)
        await work.run(engine)
        assert np.array_equal(await work.result(engine), expected)
        assert engine.statistics().operations == work.n**3


async def test_a_gradient_used_on_the_host_crosses_the_link_once_and_moments_never(tmp_path):
    """The step of a weight tile: its gradient is made on the device, AdamW runs in RAM, the device reads the new weight."""
    w, m, v, x = standing("w", "m", "v", "x")
    hyper = Tile("hyper", (9,), persistent=True)
    program = Program("step")
    for _ in range(3):
        gradient = program.tile("g", SHAPE)
        program.add(gemm(x, w, gradient))
        program.add(on_host(adamw(w, gradient, m, v, hyper, decay=True, number=program.number("norm"))))
    program.finish()
    tiles = [w, m, v, x, hyper]
    bytes_of = values(tiles[:4]) | {hyper: np.array([1, 0.9, 0.1, 0.95, 0.05, 1, 1e-3, 1, 1e-8], np.float32)}
    bytes_of[v] = np.abs(bytes_of[v])
    found = {}
    for place in ("cpu", "emulated"):
        async with Engine(place, prefetch=2) as engine:
            await runtime_of(engine).reserve(demand_of([program], tiles))
            await runtime_of(engine).store(bytes_of.items())
            assert await run(engine, program, tiles) is None
            if place == "emulated":
                assert moved(engine) == (4 * NBYTES, 3 * NBYTES)  # x once and w three times; three gradients
                assert not any(runtime_of(engine).tiers.top.of(tile).slot for tile in (m, v, w))
                assert engine.statistics().host_used_bytes == 4 * NBYTES + 64
            found[place] = [array.tobytes() for array in await runtime_of(engine).read_all(tiles)]
            await runtime_of(engine).release(tiles)
    assert found["cpu"] == found["emulated"]


async def test_tiles_that_the_host_reads_may_stay_on_the_device_and_those_it_writes_may_not():
    a, b, c, d = tiles = standing("a", "b", "c", "d")
    program = program_of(copy(a, b), on_host(copy(a, c)), copy(a, d), on_host(gelu(d, a)), copy(a, b))
    async with Engine("emulated", device_memory=6 * NBYTES) as engine:
        await prepared(engine, program, tiles)
        assert await run(engine, program, tiles) is None
        bytes_of = {a: await runtime_of(engine).read(a)}
        before = moved(engine)
        assert await run(engine, program, tiles) is None
        assert moved(engine, before) == (NBYTES, NBYTES)  # a as the host wrote it; d down
        assert [tile.name for tile in (a, c, d) if runtime_of(engine).tiers.top.of(tile).slot] == ["a"]
        found = await runtime_of(engine).read_all(tiles)
    assert np.array_equal(found[3], bytes_of[a]) and np.array_equal(found[2], bytes_of[a])
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], bytes_of[a])


async def test_bytes_that_the_host_will_overwrite_are_not_downloaded():
    a, b = tiles = standing("a", "b")
    program = program_of(copy(a, b), on_host(fill(b, 3.0)))
    async with Engine("emulated", device_memory=4 * NBYTES) as engine:
        await prepared(engine, program, tiles)
        assert await run(engine, program, tiles) is None
        assert moved(engine) == (NBYTES, 0)
        assert (await runtime_of(engine).read(b) == 3).all()


async def test_operands_of_the_host_are_not_prefetched_onto_the_device():
    tiles = standing(*(f"t{index}" for index in range(12)))
    operations = [on_host(gelu(tiles[index], tiles[index + 1])) for index in range(0, 12, 2)]
    program = program_of(copy(tiles[0], tiles[11]), *operations)
    async with Engine("emulated", device_memory=6 * NBYTES, prefetch=8) as engine:
        await prepared(engine, program, tiles)
        assert await run(engine, program, tiles) is None
        assert moved(engine)[0] == NBYTES
        assert engine.statistics().operations == 7


async def test_a_tile_that_only_the_host_uses_next_is_evicted_first(tmp_path):
    a, b, c, g, h = tiles = standing("a", "b", "c", "g", "h")
    program = program_of(copy(a, g), copy(b, c), on_host(gelu(g, h)), copy(a, c))
    async with Engine("emulated", device_memory=3 * NBYTES, host_memory=3 * 4096, spill=tmp_path, prefetch=0) as engine:
        await prepared(engine, program, tiles)
        assert await run(engine, program, tiles) is None
        before = moved(engine)
        assert await run(engine, program, tiles) is None
        assert moved(engine, before) == (0, 2 * NBYTES)  # a stays, also for its second use; g has to come down, and c for room


async def test_a_tile_that_the_host_is_about_to_write_is_loaded_after_the_write():
    w, x, y = tiles = standing("w", "x", "y")
    program = program_of(fill(x, 1.0), on_host(add(x, w)), *(fill(y, 1.0) for _ in range(20)), copy(w, y))
    async with Engine("emulated", device_memory=8 * NBYTES) as engine:
        await prepared(engine, program, tiles)
        assert await run(engine, program, tiles) is None
        before = moved(engine)
        assert await run(engine, program, tiles) is None
        assert moved(engine, before)[0] == NBYTES


def test_the_floor_counts_an_operation_where_it_runs():
    a, b, c, d = tiles = standing("a", "b", "c", "d")
    hyper = Tile("hyper", (9,), persistent=True)
    program = program_of(copy(a, b), on_host(adamw(a, b, c, d, hyper, decay=True, number=NO_NUMBER)))
    demand = demand_of([program], [*tiles, hyper])
    assert demand.floor == (0, 2)
    assert demand.passing().floor == (1, 4)
    assert demand.alone().floor == (1, 4)
    assert demand.alone().what == "adamw of a"
    assert demand_of([program_of(copy(a, b))], tiles).passing().floor == (1,)


def test_the_device_ranks_tiles_by_its_own_next_use():
    a, b = standing("a", "b")
    program = Program("ranks")
    t = program.tile("t", SHAPE)
    program.add(copy(a, t))  # 0
    program.add(on_host(copy(a, b)))  # 1
    program.add(copy(a, b))  # 2
    program.add(on_host(gelu(t, a)))  # 3
    program.add(copy(b, t))  # 4
    program.finish()
    assert program.next_uses == [(1, 3), (2, NEVER), (NEVER, 4), (NEVER, 5), (NEVER, NEVER)]
    # A tile that the host only reads stays for the device. A tile that it writes, or that it alone reads, goes down.
    assert program.device_uses == [(2, AT_HOST + 3), (2, NEVER), (NEVER, 4), (NEVER, 5), (NEVER, NEVER)]
    without = program_of(copy(a, b))
    assert without.device_uses is without.next_uses


def check_tiers(engine, tiles):
    """Check the invariants of every tile between two runs."""
    top, host = runtime_of(engine).tiers.top, runtime_of(engine).tiers.host
    for tier in (top, host):
        slots = [residency.slot for residency in tier.ledger.resident]
        assert None not in slots and len(set(slots)) == len(slots)
        assert tier.arena.packed or sum(pool.used for pool in tier.arena.pools) == len(slots)
    for tile in tiles:
        above, below = top.of(tile), host.of(tile)
        for tier, residency in ((top, above), (host, below)):
            has_slot = residency.slot is not None
            assert has_slot == (residency in tier.ledger.resident) == (residency.state in IN_A_SLOT), residency
        if above.state in (STORED, CLEAN):
            assert below.state in (STORED, CLEAN, DIRTY), tile


@pytest.mark.parametrize("seed", [*range(6), *map(law, range(6, 24))])
async def test_random_programs_agree_with_arrays_and_tiers_stay_consistent(seed, tmp_path):
    chance = random.Random(seed)
    work = write_program(chance)
    for index, entry in enumerate(work.program.entries):
        if hasattr(entry, "kernel") and chance.random() < 0.4:
            work.program.entries[index] = on_host(entry)
    work.program.finish()
    work.demand = demand_of([work.program], work.values)
    place = draw_place(chance, work.demand)
    if place.device == "cpu":
        place = replace(place, device="emulated", device_memory=work.demand.floor_nbytes, host_memory=place.host_memory)
    async with StressEngine(place, tmp_path) as engine:
        expected = work.interpret(work.values)  # here, because BLAS has one thread while an engine is open
        engine.plays = False
        await work.store(engine)
        tiles = [*work.values, *work.program.temporaries, *work.program.inputs.values()]
        outcome = await work.run(engine)
        check_tiers(engine, tiles)
        (await work.read(engine, outcome)).expect(expected)
