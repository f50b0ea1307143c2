"""An engine of several emulated devices over one RAM: opened, cut, lent and closed together. Programs run on the first one.

Copies of a tile on several devices are tested in memory/test_copies.py, trainings in layers/test_devices.py.
"""

import json
import os

import numpy as np
import pytest

from asynctile import DeviceError, Engine
from asynctile.cli.stress.settled import Settled
from asynctile.device import EmulatedDevice, resolved
from asynctile.events import Opened, Pressure
from asynctile.ops import copy
from asynctile.program.needs import demand_of
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile
from tests.inside_engine import device_of, life_of
from tests.laws import covering
from tests.matmul import Matmul, engine_for, product_in_ram
from tests.test_lifetime import blas, threads

CORES = len(os.sched_getaffinity(0))


async def bring(engine, number, tile, value=None):
    """Put the tile on a device, as a schedule would, and give it a value there."""
    tiers = runtime_of(engine).tiers

    async def job():
        top = tiers.tops[number]
        residency = top.of(tile)
        for other in tiers.tops:
            if other.of(tile).slot is not None:
                other.give_up(other.of(tile))
        tiers.copies.drop(top, residency)
        top.admit([residency], "r")
        await tiers.run_ahead.settle()
        if value is not None:
            residency.array.fill(value)
            top.written_by(residency, None, tiers.rank)

    await runtime_of(engine).call(job())


async def test_several_devices_have_one_name_and_divide_the_cores_and_the_caps():
    engine = Engine("emulated*3", device_memory="1MiB", host_memory="8MiB")
    reader = engine.events()
    assert engine.device == "emulated*3" and "on emulated*3 in fp32 with device memory 1.00 MiB" in repr(engine)
    async with engine:
        tiers, now = runtime_of(engine).tiers, engine.statistics()
        assert (now.device, now.device_memory_bytes, now.host_memory_bytes) == ("emulated*3", 1 << 20, 8 << 20)
        assert [top.arena.cap for top in tiers.tops] == [1 << 20] * 3
        assert [device.threads for device in tiers.devices] == [max(1, CORES // 3)] * 3
        names = [queue.name for queue in now.queues]
        assert {"compute:0", "upload:1", "download:2"} < set(names) and len(names) == len(set(names))
    opened = [event async for event in reader if isinstance(event, Opened)]
    assert [(event.device, event.device_memory_bytes) for event in opened] == [("emulated*3", 1 << 20)]
    assert Engine("emulated*1").device == "emulated"


def test_without_caps_all_devices_together_get_what_one_would_get():
    caps = [device_of(Engine(f"emulated*{count}")).budget(None) * count for count in (1, 4)]
    assert caps[1] == pytest.approx(caps[0], rel=0.2)  # RAM that others use comes and goes


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("emulated*0", "asks for 0 devices"),
        ("emulated*x", "asks for x devices"),
        ("emulated,cuda:0", "unlike devices"),
        ("cuda:0,cuda:0", "names cuda:0 twice"),
        ("cpu*2", "RAM several times"),
    ],
)
def test_a_wrong_set_of_devices_is_refused_before_any_work(device, says, tmp_path):
    before = threads()
    with pytest.raises(ValueError, match=says):
        Engine(device, spill=tmp_path)
    assert (threads(), list(tmp_path.iterdir())) == (before, [])


@pytest.mark.parametrize(("gpus", "name"), [(0, "cuda:0"), (1, "cuda:0"), (3, "cuda:0-2")])
def test_all_gpus_are_those_that_the_machine_has(gpus, name, monkeypatch):
    monkeypatch.setattr("asynctile.device.gpu_count", lambda: gpus)
    assert resolved("cuda:all") == name


def test_a_device_that_cannot_be_made_closes_those_before_it(monkeypatch):
    closed = []

    class Fails(EmulatedDevice):
        def __init__(self, *args, number, **more):
            if number == 2:
                raise DeviceError("no third device")
            super().__init__(*args, number=number, **more)

        def close(self, patience_s=None):
            closed.append(self)
            super().close(patience_s)

    monkeypatch.setattr("asynctile.device.EmulatedDevice", Fails)
    with pytest.raises(DeviceError, match="no third device"):
        Engine("emulated*3")
    assert len(closed) == 2


async def test_a_device_that_cannot_start_leaves_no_device_open(tmp_path):
    before, engine = blas(), Engine("emulated*2", spill=tmp_path)

    def refuse():
        raise DeviceError("the system refuses a thread")

    life_of(engine).devices[1].start = refuse
    with pytest.raises(DeviceError, match="the system refuses a thread"):
        await engine.open()
    assert (engine.is_open, threads(), blas(), list(tmp_path.iterdir())) == (False, [], before, [])


async def test_a_device_that_cannot_close_leaves_no_other_open():
    engine = await Engine("emulated*2").open()
    first, true = device_of(engine), device_of(engine).close

    def fails(patience_s=None):
        true(patience_s)
        raise DeviceError("the first device hangs")

    first.close = fails
    with pytest.raises(DeviceError, match="the first device hangs"):
        await engine.aclose()
    assert (engine.is_open, threads()) == (False, [])


@pytest.mark.parametrize(("place", "plays"), covering([(3, 1, 2), (6, 12, 0), (20, 3, 8), (60, 60, 2)], [True, False]))
async def test_a_program_on_the_first_of_two_devices_gives_the_bits_and_bytes_of_one(place, plays, tmp_path):
    slots, ram, prefetch = place
    found = []
    for device in ("emulated", "emulated*2"):
        work = Matmul()
        folder = tmp_path / device
        folder.mkdir()
        async with engine_for(work, folder, device, slots, ram, prefetch) as engine:
            engine.plays = plays
            await work.prepare(engine)
            for _ in range(3):
                await work.run(engine)
            now = engine.statistics()
            found.append((
                (await work.result(engine)).tobytes(), now.uploaded_bytes, now.downloaded_bytes, now.device_peak_bytes,
                now.host_peak_bytes, now.spill_read_bytes, now.spill_written_bytes, now.operations,
            ))  # fmt: skip
    assert found[0] == found[1]
    assert found[0][0] == (await product_in_ram(Matmul())).tobytes()


@pytest.mark.parametrize("again", ["a program", "an operation"])
async def test_work_on_the_first_device_finds_what_another_one_has_changed(again, tmp_path):
    work = Matmul(n=2)
    async with engine_for(work, tmp_path, "emulated*2", 5, 6) as engine:
        await work.prepare(engine)
        await work.run(engine)
        a, c = work.tiles["a"][0, 0], work.tiles["c"][0, 0]
        await runtime_of(engine).reserve(work.demand)  # packed tiers have no slots
        await bring(engine, 1, a, 2.0)
        work.part(work.a, 0, 0).fill(2.0)
        if again == "a program":
            await work.run(engine)
            assert np.allclose(await work.result(engine), work.a @ work.b, atol=1e-3)
        else:
            await runtime_of(engine).launch(copy(a, c))
            assert (await runtime_of(engine).read(c) == 2).all()
        assert not runtime_of(engine).tiers.tops[1].ledger.resident


async def test_moved_bytes_are_summed_and_sizes_are_those_of_the_fullest_device():
    tiles = [Tile(f"t{index}", (1024,), persistent=True) for index in range(4)]
    async with Engine("emulated*2", device_memory="1MiB", host_memory="1MiB") as engine:
        await runtime_of(engine).reserve(demand_of([], tiles))
        await runtime_of(engine).store((tile, np.ones(tile.shape, np.float32)) for tile in tiles)
        for tile in tiles[:3]:
            await bring(engine, 1, tile)
        await bring(engine, 0, tiles[3])
        now = engine.statistics()
        assert (now.uploaded_bytes, now.device_used_bytes, now.device_peak_bytes) == (4 << 12, 3 << 12, 3 << 12)
        for tile in (tiles[0], tiles[3]):
            assert (await runtime_of(engine).read(tile) == 1).all()
        assert engine.statistics().downloaded_bytes == 2 << 12
        await runtime_of(engine).release(tiles)
        assert engine.statistics().device_used_bytes == engine.statistics().host_used_bytes == 0


async def test_a_share_gets_its_part_of_every_device():
    work = Matmul()
    cap = 60 * work.nbytes
    async with Engine("emulated*2", device_memory=cap, host_memory=4 * cap) as engine:
        tops, tile = runtime_of(engine).tiers.tops, Tile("mine", (1024,), persistent=True)
        await runtime_of(engine).reserve(demand_of([], [tile]))
        await runtime_of(engine).store([(tile, np.ones(tile.shape, np.float32))])
        await bring(engine, 1, tile, 5.0)
        async with engine.share(device_memory=cap - 8192, host_memory=2 * cap) as part:
            assert [top.arena.cap for top in tops] == [8192] * 2
            assert [top.arena.cap for top in runtime_of(part).tiers.tops] == [cap - 8192] * 2
            assert part.statistics().device == part.device == "emulated*2"
            await work.prepare(part)
            await work.run(part)
            assert np.allclose(await work.result(part), work.a @ work.b, atol=1e-3)
            await bring(part, 1, work.tiles["a"][0, 0], 3.0)
        assert [top.arena.cap for top in tops] == [cap] * 2
        assert (await runtime_of(engine).read(tile) == 5).all()


async def test_a_cap_that_any_device_nearly_fills_is_told_once():
    tiles = [Tile(f"t{index}", (1024,), persistent=True) for index in range(4)]
    async with Engine("emulated*2", device_memory=4 << 12, host_memory="1MiB") as engine:
        reader = engine.events()
        await runtime_of(engine).reserve(demand_of([], tiles))
        await runtime_of(engine).store((tile, np.ones(tile.shape, np.float32)) for tile in tiles)
        for tile in tiles:
            await bring(engine, 1, tile)
        for _ in range(2):
            await runtime_of(engine).synchronize()
    told = [event async for event in reader if isinstance(event, Pressure)]
    assert [(event.tier, event.used_bytes, event.cap_bytes) for event in told] == [("device_memory", 4 << 12, 4 << 12)]


async def test_a_tile_left_on_the_second_device_is_not_settled(tmp_path):
    tile = Tile("left", (1024,), persistent=True)
    async with Engine("emulated*2", device_memory="1MiB", host_memory="1MiB") as engine:
        settled = Settled(engine, [], tmp_path, set())
        await runtime_of(engine).reserve(demand_of([], [tile]))
        await runtime_of(engine).store([(tile, np.ones(tile.shape, np.float32))])
        await bring(engine, 1, tile)
        await settled.expect("nothing", [tile])
        with pytest.raises(Exception, match=r"nothing left left in host_memory, left in device_memory$"):
            await settled.expect("nothing", [])


async def test_a_trace_has_tracks_for_every_device(tmp_path):
    work = Matmul(n=2)
    async with Engine("emulated*2", device_memory=5 * work.nbytes) as engine:
        await work.prepare(engine)
        engine.start_trace(tmp_path / "t.json")
        await work.run(engine)
        await runtime_of(engine).reserve(work.demand)  # packed tiers have no slots
        await bring(engine, 1, work.tiles["a"][0, 0])
        engine.stop_trace()
    events = json.loads((tmp_path / "t.json").read_text())
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [(tracks[event["tid"]], event["name"]) for event in events if event["ph"] == "X" and event["tid"] in tracks]
    assert ("upload:1", "upload a[0,0]") in spans and any(track.startswith("compute:0") for track, _ in spans)


async def test_the_devices_of_an_engine_call_the_same_kernels():
    async with Engine("emulated*2") as engine:
        first, second = runtime_of(engine).tiers.devices
        assert first.kernels is second.kernels
