"""Copies of tiles on several devices over one RAM: the newest bytes are found and survive, wherever they are."""

import asyncio
import threading
from contextlib import asynccontextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile import BudgetError
from asynctile.device import open_devices
from asynctile.launch.assembly import Assembly
from asynctile.memory.tiers import TierOptions, Tiers
from asynctile.ops import copy, fill
from asynctile.program.needs import demand_of
from asynctile.storage.residency import ABSENT, CLEAN, DIRTY, STORED
from asynctile.storage.spill import SpillTier
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent
from tests.laws import examples
from tests.settle import HANG_S

PAGE = 4096
TILES = [Tile(f"t{index}", (PAGE // 4,), persistent=True) for index in range(4)]


@asynccontextmanager
async def opened(count=2, slots=3, ram=None, folder=None):
    """Yield the assembly of `count` emulated devices, each with `slots` for TILES. ram: slots in RAM, over `folder`."""
    devices = open_devices(f"emulated*{count}")
    spill = transfers = None
    if folder is not None:
        spill, transfers = SpillTier(folder), devices[0].add_stream("spill", 2)
        spill.open()
    for device in devices:
        device.start()
    options = TierOptions(device_memory=slots * PAGE, host_memory=(ram or 2 * len(TILES)) * PAGE, watchdog=60)
    tiers = Tiers(devices, spill, transfers, options)
    await tiers.caps.cut(demand_of([], TILES))
    try:
        yield Assembly(tiers)
    finally:
        for device in devices:
            device.close()
        tiers.close()
        if spill is not None:
            spill.close()
        for tile in TILES:
            tile.at.clear()


def bring(tiers, number, tile):
    """Put a copy of the tile, which stands nowhere else, on a device, as a schedule would; return its residency there."""
    top = tiers.tops[number]
    residency = top.of(tile)
    if residency.state is ABSENT:
        tiers.copies.drop(top, residency)
    top.admit([residency], "r")
    return residency


async def change(tiers, number, tile, value):
    """Overwrite the tile on a device, so that the newest bytes are there."""
    for other, top in enumerate(tiers.tops):
        residency = top.of(tile)
        if other != number and residency.slot is not None:
            top.give_up(residency)
    residency = bring(tiers, number, tile)
    await tiers.run_ahead.settle()
    residency.array.fill(value)
    tiers.tops[number].written_by(residency, None, tiers.rank)


async def write(tiers, number, tile, value):
    """Write a tile that nobody has written, on a device."""
    residency = tiers.tops[number].of(tile)
    tiers.tops[number].admit([residency], "w")
    residency.array.fill(value)
    tiers.tops[number].written_by(residency, None, tiers.rank)


def failed():
    event = StreamEvent()
    event.done, event.error = True, FloatingPointError("lost")
    return event


def full(value):
    return np.full(PAGE // 4, value, np.float32)


def states(tiers, tile):
    return [top.of(tile).state for top in tiers.tops]


def test_tiers_are_numbered_with_ram_between_the_first_device_and_the_others():
    devices = open_devices("emulated*3")
    tiers = Tiers(devices, None, None, TierOptions())
    assert tiers.from_the_top() == (tiers.tops[0], tiers.host, tiers.tops[1], tiers.tops[2])
    assert [top.memory for top in tiers.tops] == list(devices)
    assert all(top.link.host is tiers.host and top.link.device is top.memory for top in tiers.tops)
    (only,) = Tiers(open_devices("cpu"), None, None, TierOptions()).from_the_top()
    assert only.link is None


async def test_bytes_that_one_device_changed_are_read_there():
    async with opened() as assembly:
        tiers, tile = assembly.tiers, TILES[0]
        await assembly.put(tile, full(1))
        await change(tiers, 1, tile, 5)
        assert (states(tiers, tile), tiers.copies.device_of(tile)) == ([STORED, DIRTY], 1)
        assert (await assembly.read(tile) == 5).all()
        assert (assembly.fetched_nbytes, tiers.tops[1].written_nbytes) == (PAGE, 0)


async def test_the_host_writes_a_tile_and_no_device_has_a_copy_any_more():
    async with opened() as assembly:
        tiers, tile = assembly.tiers, TILES[0]
        await assembly.put(tile, full(1))
        for number in range(2):
            bring(tiers, number, tile)
        assert states(tiers, tile) == [CLEAN, CLEAN]
        await assembly.put(tile, full(2))
        assert states(tiers, tile) == [STORED, STORED] and tiers.copies.device_of(tile) is None
        assert (await assembly.read(tile) == 2).all()


async def test_an_operation_on_the_first_device_finds_what_another_one_has_written():
    async with opened() as assembly:
        tiers, (a, b, *_) = assembly.tiers, TILES
        await assembly.put(a, full(1))
        await change(tiers, 1, a, 6)
        await write(tiers, 1, b, 7)  # RAM has never had it
        for tile, value in ((a, 6), (b, 7)):
            await assembly.launch(copy(tile, TILES[2]), None)
            assert (await assembly.read(TILES[2]) == value).all()
        assert tiers.tops[1].written_nbytes == 2 * PAGE and not tiers.tops[1].ledger.resident
        await assembly.launch(fill(a, 9.0), None)
        assert states(tiers, a)[0] is DIRTY and (await assembly.read(a) == 9).all()


async def test_the_first_device_finds_a_tile_that_it_has_never_met_below_another_one():
    async with opened() as assembly:
        tiers, (tile, other, *_) = assembly.tiers, TILES
        await write(tiers, 1, tile, 6)
        tiers.tops[1].clear()
        assert states(tiers, tile) == [ABSENT, STORED]
        await assembly.launch(copy(tile, other), None)
        assert (await assembly.read(other) == 6).all() and states(tiers, tile) == [CLEAN, STORED]


async def test_the_first_device_waits_for_what_another_one_still_computes():
    async with opened() as assembly:
        tiers, gate, (tile, other, *_) = assembly.tiers, threading.Event(), TILES
        await assembly.put(tile, full(1))
        residency = bring(tiers, 1, tile)
        tiers.devices[1].kernels["slow"] = lambda array: (gate.wait(HANG_S), np.add(array, 3, out=array))
        slow = type(fill(tile, 0.0))("slow", (tile,), "u")
        event = tiers.devices[1].launch(slow, (residency.array,), None, (residency.written,))
        tiers.run_ahead.add(event)
        tiers.tops[1].written_by(residency, event, tiers.rank)
        copied = await assembly.launch(copy(tile, other), None)
        assert not event.done and not copied.done
        gate.set()
        await tiers.run_ahead.drain()
        assert (await assembly.read(other) == 4).all() and copied.done


async def test_a_device_keeps_what_ram_has_no_room_for(tmp_path):
    async with opened() as assembly:
        tiers, tile = assembly.tiers, TILES[0]
        await write(tiers, 1, tile, 4)
        tiers.host.arena.cap = 0
        with pytest.raises(BudgetError):
            tiers.copies.bring_down([tile])
        assert states(tiers, tile) == [ABSENT, DIRTY] and (await assembly.read(tile) == 4).all()


@pytest.mark.parametrize("copies", [1, 2])
async def test_a_tile_lost_in_ram_survives_on_the_devices_that_have_a_copy(copies):
    async with opened() as assembly:
        tiers, tile = assembly.tiers, TILES[0]
        await assembly.put(tile, full(3))
        for number in (1, 0)[:copies]:
            bring(tiers, number, tile)
        await tiers.run_ahead.settle()
        tiers.host.of(tile).written = failed()
        assert tiers.copies.rescue(tile)
        assert sorted(states(tiers, tile)) == [ABSENT, DIRTY] and (await assembly.read(tile) == 3).all()
        assert tiers.copies.rescue(tile)


@pytest.mark.parametrize("where", ["on the device that changed it", "in RAM"])
async def test_a_tile_whose_newest_bytes_are_lost_is_known_nowhere(where):
    async with opened(3) as assembly:
        tiers, tile = assembly.tiers, TILES[0]
        await assembly.put(tile, full(3))
        if where == "in RAM":
            tiers.host.of(tile).written = failed()
        else:
            bring(tiers, 0, tile)
            await change(tiers, 2, tile, 8)
            tiers.tops[2].of(tile).written = failed()
        assert not tiers.copies.rescue(tile)
        assert not tiers.copies.is_written(tile) and tiers.copies.rescue(tile)
        assert not any(top.ledger.resident for top in tiers.tops)


@pytest.mark.parametrize("spills", [False, True])
@given(chance=st.randoms(use_true_random=False), count=st.integers(2, 3))
@examples(20)
def test_no_byte_is_lost_however_devices_and_the_host_change_tiles(tmp_path_factory, spills, chance, count):
    folder = tmp_path_factory.mktemp("spill") if spills else None
    asyncio.run(change_at_random(chance, count, folder))


async def change_at_random(chance, count, folder):
    """Take random steps on `count` devices. Nothing is awaited in between but what a step awaits itself."""
    values = {}
    async with opened(count, ram=4 if folder else None, folder=folder) as assembly:
        tiers = assembly.tiers
        for step in range(60):
            tile, number = chance.choice(TILES), chance.randrange(count)
            act = chance.choice(["put", "change", "bring", "launch", "read", "release", "down", "clear", "cut"])
            if act == "put":
                await assembly.put(tile, full(step))
                values[tile] = step
            elif act == "launch":
                await assembly.launch(fill(tile, float(step)), None)
                values[tile] = step
            elif act == "down":
                tiers.copies.bring_down(TILES)
                assert not any(top.ledger.resident for top in tiers.tops[1:])
            elif act == "clear":
                tiers.tops[number].clear()
            elif act == "cut":
                await tiers.caps.cut(demand_of([], TILES))
            elif tile not in values:
                assert not tiers.copies.is_written(tile)
            elif act == "change":
                await change(tiers, number, tile, step)
                values[tile] = step
            elif act == "bring" and tiers.copies.device_of(tile) is None:
                bring(tiers, number, tile)
            elif act == "read":
                await tiers.run_ahead.settle()
                assert (await assembly.read(tile) == values[tile]).all()
            elif act == "release":
                assembly.release([tile])
                del values[tile]
            for one in TILES:
                check_law(tiers, one)
        await tiers.run_ahead.drain()
        for tile, value in values.items():
            assert (await assembly.read(tile) == value).all()


def check_law(tiers, tile):
    """At most one device has changed the tile since RAM had it, and then no other device has a copy."""
    there = [top.of(tile) for top in tiers.tops]
    dirty = [residency for residency in there if residency.state is DIRTY]
    assert len(dirty) <= 1 and (not dirty or sum(residency.slot is not None for residency in there) == 1)
