"""The engine over a spill folder, on programs without a model: bits, moves, freed memory. test_failures.py tests failures."""

import asyncio
import gc
import os
import threading
import weakref

import numpy as np
import pytest

from asynctile import BudgetError, Engine
from asynctile.share import runtime_of
from asynctile.storage.residency import ABSENT, DIRTY
from asynctile.storage.tile import NEVER
from tests.matmul import Matmul, engine_for, product_in_ram
from tests.settle import settle

#: device, slots of the device, slots of RAM, prefetch
PLACES = [
    ("cpu", None, 3, 2), ("cpu", None, 5, 0), ("cpu", None, 20, 8), ("cpu", None, 60, 2),
    ("emulated", 3, 1, 2), ("emulated", 6, 1, 0), ("emulated", 6, 12, 2), ("emulated", 20, 3, 8), ("emulated", 60, 2, 2),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=str)
async def test_a_program_gives_the_same_bits_from_whichever_tiers_its_tiles_come(place, tmp_path):
    result, work = await product_in_ram(Matmul()), Matmul()
    async with engine_for(work, tmp_path, *place) as engine:
        await work.prepare(engine)
        for _ in range(3):
            await work.run(engine)
        assert np.array_equal(await work.result(engine), result)
        statistics = engine.statistics()
        await runtime_of(engine).release(work.standing())
        after = engine.statistics()
    assert statistics.host_peak_bytes <= place[2] * work.nbytes
    assert (statistics.spill_read_bytes > 0) == (place[2] < 48)
    assert (after.device_used_bytes, after.host_used_bytes, after.spill_used_bytes) == (0, 0, 0)
    assert os.listdir(tmp_path) == []


async def test_tiles_changed_by_the_device_leave_ram_without_being_written_to_disk(tmp_path):
    """Each run writes C and never reads it. RAM and disk hold stale bytes of it as soon as the device has begun."""
    work = Matmul()
    async with engine_for(work, tmp_path, "emulated", 48, 40) as engine:
        await work.prepare(engine)
        for _ in range(2):  # tiles in RAM go to the disk once, when their places become those of a schedule
            await work.run(engine)
        first = engine.statistics().spill_written_bytes
        for _ in range(3):
            await work.run(engine)
        assert engine.statistics().spill_written_bytes == first


async def test_a_closed_engine_leaves_no_descriptor_no_thread_and_no_file(tmp_path):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    work = Matmul()
    async with engine_for(work, tmp_path, "cpu", None, 5) as engine:
        await work.prepare(engine)
    before = descriptors()
    for _ in range(5):
        work = Matmul()
        async with engine_for(work, tmp_path, "emulated", 6, 5) as engine:
            await work.prepare(engine)
            await work.run(engine)
    assert descriptors() <= before
    assert not any(thread.name.startswith("asynctile") for thread in threading.enumerate())
    assert os.listdir(tmp_path) == []


async def test_ram_below_one_slot_of_each_size_is_refused_before_anything_moves(tmp_path):
    work = Matmul()
    async with Engine("emulated", device_memory=6 * work.nbytes, host_memory=work.nbytes - 1, spill=tmp_path) as engine:
        with pytest.raises(BudgetError, match="raise host_memory") as caught:
            await work.prepare(engine)
        assert caught.value.floor == work.nbytes
        assert engine.statistics().host_peak_bytes == 0


@pytest.mark.parametrize(("slots", "ram"), [(20, 3), (40, 3), (40, 20)])
async def test_reserved_places_on_the_disk_are_there_whatever_the_tiers_above_hold(slots, ram, tmp_path):
    """Tiles of another program that are only on the device must find a place too."""
    one, two = Matmul(seed=1), Matmul(seed=2)
    limit = 96 * one.nbytes
    async with engine_for(one, tmp_path, "emulated", slots, ram, spill_limit=limit) as engine:
        for work in (one, two, one, two):
            if work is two or runtime_of(engine).tiers.top.of(one.tiles["a"][0, 0]).state is ABSENT:
                await work.prepare(engine)
            await work.run(engine)
        for work in (one, two):
            assert np.allclose(await work.result(engine), work.a @ work.b, atol=1e-3)
    three, four = Matmul(seed=1), Matmul(seed=2)
    async with engine_for(three, tmp_path, "emulated", slots, ram, spill_limit=limit - three.nbytes) as engine:
        await three.prepare(engine)
        await three.run(engine)
        with pytest.raises(BudgetError, match="raise spill_limit") as caught:
            await four.prepare(engine)
        assert caught.value.floor == limit


@pytest.mark.parametrize("device", ["cpu", "emulated"])
async def test_memory_of_a_divided_arena_stays_for_other_slots_and_is_freed_with_the_cap(device, tmp_path):
    first, other = Matmul(), Matmul(n=2, edge=64)
    options = {"device_memory": 40 * first.nbytes} if device == "emulated" else {}
    async with Engine(device, host_memory=40 * first.nbytes, spill=tmp_path, **options) as engine:
        await first.prepare(engine)
        await first.run(engine)
        old = [weakref.ref(tier.arena.ground.memory) for tier in runtime_of(engine).tiers.from_the_top()]
        await other.prepare(engine)
        assert [memory() for memory in old] == [tier.arena.ground.memory for tier in runtime_of(engine).tiers.from_the_top()]
        part = dict.fromkeys(("host_memory", *options), 20 * first.nbytes)
        async with engine.share(**part):
            assert [memory() for memory in old] == [None] * len(old)


@pytest.mark.parametrize("leaves", ["for slots", "with the cap"])
@pytest.mark.parametrize("device", ["cpu", "emulated"])
async def test_a_packed_tier_gives_way_to_slots_and_to_other_caps_without_losing_a_byte(device, leaves, tmp_path):
    result, work = await product_in_ram(Matmul()), Matmul()
    right, packed = work.a.copy(), [*work.tiles["a"].items()][:6]
    for key, _ in packed:
        work.part(work.a, *key).fill(0)  # so only the packed tier has the right bytes
    options = {"device_memory": 12 * work.nbytes} if device == "emulated" else {}

    async def pack():
        async with runtime_of(engine).exclusive():
            top = runtime_of(engine).tiers.top
            top.clear()
            await runtime_of(engine).tiers.run_ahead.settle()
            top.pack()
            for number, (key, tile) in enumerate(packed):
                residency, place = top.of(tile), top.arena.range_at(2 * number * work.nbytes, work.nbytes)
                top.assume([(residency, DIRTY, place, NEVER)])
                residency.array[...] = work.part(right, *key)
            assert top.arena.used_nbytes == 6 * work.nbytes and top.arena.counted_nbytes == top.arena.used_nbytes

    async with Engine(device, host_memory=12 * work.nbytes, spill=tmp_path, **options) as engine:
        await work.prepare(engine)
        await runtime_of(engine).call(pack())
        memory = weakref.ref(runtime_of(engine).tiers.top.arena.ground.memory)
        if leaves == "for slots":
            await runtime_of(engine).reserve(work.demand)
            assert runtime_of(engine).tiers.top.arena.ground.memory is memory()
        else:
            async with engine.share(**dict.fromkeys(("host_memory", *options), 4 * work.nbytes)):
                assert memory() is None
        assert not runtime_of(engine).tiers.top.arena.packed
        await work.run(engine)
        assert np.array_equal(await work.result(engine), result)
        statistics = engine.statistics()
    assert max(statistics.device_peak_bytes, statistics.host_peak_bytes) <= 12 * work.nbytes


async def borrowed(engine, nbytes):
    async def job():
        async with runtime_of(engine).exclusive():
            return runtime_of(engine).tiers.caps.borrow(nbytes, "a test")

    return await runtime_of(engine).call(job())


async def given_back(loan):
    loan.give_back()


async def test_a_program_waits_for_lent_ram_that_it_needs(tmp_path):
    work = Matmul()
    async with engine_for(work, tmp_path, "cpu", None, 50) as engine:
        loan = await borrowed(engine, 30 * work.nbytes)
        assert loan is not None
        preparing = asyncio.create_task(work.prepare(engine))
        await settle(engine)
        assert not preparing.done()
        await runtime_of(engine).call(given_back(loan))
        await preparing
        await work.run(engine)
        assert await borrowed(engine, 3 * work.nbytes) is None
        again = await borrowed(engine, 2 * work.nbytes)
        assert engine.statistics().host_peak_bytes == 50 * work.nbytes
        assert engine.statistics().host_used_bytes == 50 * work.nbytes
        for _ in range(2):
            await runtime_of(engine).call(given_back(again))
        assert engine.statistics().host_used_bytes == 48 * work.nbytes


@pytest.mark.parametrize("device", ["cpu", "emulated"])
async def test_a_program_that_has_run_ends_with_its_last_user_and_its_tiles(device, tmp_path):
    """Otherwise everything kept for a program, such as graphs in a device's memory, would stay."""
    work = Matmul()
    slots = 6 if device == "emulated" else None
    async with engine_for(work, tmp_path, device, slots, 5) as engine:
        await work.prepare(engine)
        await work.run(engine)
        program = weakref.ref(work.program)
        await runtime_of(engine).release(work.standing())
        del work.program
        gc.collect()
        assert program() is None
