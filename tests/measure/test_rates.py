"""What the probe of rates uses: tiles that no cache holds, products that last longer than it takes to ask for them.

That it stays within the caps and leaves nothing behind is tested where it is asked for (tests/layers/test_update_placement.py).
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.measure import rates
from asynctile.memory.tier import Tier
from asynctile.ops import fill
from asynctile.program.needs import demand_of
from asynctile.program.program import Program
from asynctile.storage.demand import Demand
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent
from tests.cuda.idle import IdleDriver
from tests.inside_engine import device_of

NBYTES = 64 * 64 * 4


def fills_demand(tiles: list[Tile]) -> Demand:
    """Of tiles that stay, each overwritten once."""
    program = Program("fills")
    for tile in tiles:
        program.add(fill(tile, 0.0))
    return demand_of([program.finish()], tiles)


def tiles_of(count: int, *shape: int) -> list[Tile]:
    return [Tile(f"t[{index}]", shape, persistent=True) for index in range(count)]


@pytest.mark.parametrize(
    ("tiles", "stored", "most", "sets"),
    [(40, 0, 1 << 30, 10), (40, 0, 6 * 4 * NBYTES, 6), (40, 10, 1 << 30, 7), (3, 0, 1 << 30, 1)],
)
async def test_updates_go_round_the_tiles_that_are_free_up_to_what_no_cache_holds(
    monkeypatch: pytest.MonkeyPatch, tiles: int, stored: int, most: int, sets: int
) -> None:
    """stored: tiles that stand in RAM already, and stay as they are."""
    seen: list[int] = []
    monkeypatch.setattr(rates, "BEYOND_CACHES_NBYTES", most)
    monkeypatch.setattr(rates, "caches_nbytes", lambda: 1 << 30)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    async with Engine("emulated", device_memory="256KiB") as engine:
        launch, all_tiles = device_of(engine).launch_on_host, tiles_of(tiles, 64, 64)

        def noted(operation: Any, arrays: Any, *more: Any) -> Any:
            seen.append(arrays[0].ctypes.data)
            return launch(operation, arrays, *more)

        monkeypatch.setattr(device_of(engine), "launch_on_host", noted)
        await engine.reserve(fills_demand(all_tiles))
        numbers = [np.full((64, 64), index, np.float32) for index in range(stored)]
        await engine.store(zip(all_tiles, numbers, strict=False))
        assert await engine.rates(fills_demand(all_tiles)) is not None
        for tile, expected in zip(all_tiles, numbers, strict=False):
            assert np.array_equal(await engine.read(tile), expected)
    assert len(set(seen)) == sets
    assert seen[sets:] == seen[:-sets], "each is met again only after all others"


@pytest.mark.parametrize(
    ("precision", "shape", "edge"),
    [("bf16", (4096, 2048), 4096), ("fp32", (4096, 4096), 4096), ("bf16", (4096, 4096), 4096), ("fp32", (2048, 1024), 1448)],
)
async def test_products_on_a_gpu_are_as_large_as_their_slots_take_up_to_4096(
    monkeypatch: pytest.MonkeyPatch, precision: str, shape: tuple[int, int], edge: int
) -> None:
    monkeypatch.setattr("asynctile.device.open_driver", lambda name: IdleDriver())
    monkeypatch.setattr(rates, "BEYOND_CACHES_NBYTES", 1)
    seen: set[int] = set()
    async with Engine("cuda:0", device_memory="2GiB", precision=precision) as engine:
        launch = device_of(engine).launch

        def noted(operation: Any, arrays: Any, *more: Any) -> Any:
            if operation.kernel == "gemm":
                seen.update(operation.operands[0].shape)
            return launch(operation, arrays, *more)

        monkeypatch.setattr(device_of(engine), "launch", noted)
        found = await engine.rates(fills_demand(tiles_of(8, *shape)))
    assert found is not None
    assert seen == {edge}
    assert np.isfinite(found.flops_per_s)


@pytest.mark.parametrize("what", ["fill", "launch", "upload", "download", "launch_on_host"])
async def test_a_probe_that_is_cancelled_gives_its_slots_back_when_nothing_writes_there_any_more(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(rates, "BEYOND_CACHES_NBYTES", 1)
    began, go_on = threading.Event(), threading.Event()
    events: list[StreamEvent] = []
    under_way: list[bool] = []
    fills: list[bool] = []

    async def in_thread(work: Any, *args: Any) -> Any:
        if work is rates.caches_nbytes:
            return await asyncio.get_running_loop().run_in_executor(None, work, *args)

        def late() -> None:
            began.set()
            go_on.wait(20)
            work(*args)
            fills.append(True)

        fills.append(False)
        return await asyncio.get_running_loop().run_in_executor(None, late)

    def released(tier: Tier, tile: Tile) -> None:
        if tile.name.startswith("probe"):
            under_way.append(fills.count(False) != fills.count(True) or not all(event.done for event in events))
        release(tier, tile)

    async def turn() -> None:
        await asyncio.sleep(0)

    async with Engine("emulated", device_memory="256KiB") as engine:
        release = Tier.release
        monkeypatch.setattr(Tier, "release", released)
        if what == "fill":
            monkeypatch.setattr(asyncio, "to_thread", in_thread)
        else:
            real = getattr(device_of(engine), what)
            gate = engine._files.enqueue((), go_on.wait, (20,))

            def late(*args: Any) -> StreamEvent:
                events.append(real(*args[:-1], (*args[-1], gate)))
                began.set()
                return events[-1]

            monkeypatch.setattr(device_of(engine), what, late)
        measuring = asyncio.create_task(engine.rates(fills_demand(tiles_of(8, 64, 64))))
        while not began.is_set():
            await engine.call(turn())
        measuring.cancel()
        for _ in range(20):
            await engine.call(turn())
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await measuring
        assert under_way and not any(under_way)
        monkeypatch.undo()
        assert await engine.rates(fills_demand(tiles_of(8, 64, 64))) is not None


def cache_of(cpus: Path, cpu: int, level: int, shared: str, size: str) -> None:
    folder = cpus / f"cpu{cpu}" / "cache" / f"index{level}"
    folder.mkdir(parents=True)
    for name, value in (("level", level), ("shared_cpu_list", shared), ("size", size)):
        (folder / name).write_text(f"{value}\n")


def test_caches_of_the_last_level_count_once_each_and_are_not_guessed(tmp_path: Path) -> None:
    for cpu, shared in enumerate(("0-1", "0-1", "2-3", "2-3")):
        cache_of(tmp_path, cpu, 2, str(cpu), "1024K")
        cache_of(tmp_path, cpu, 3, shared, "32768K")
    assert rates.caches_nbytes(tmp_path) == 64 << 20
    (tmp_path / "cpu0" / "cache" / "index3" / "size").write_text("much")
    assert rates.caches_nbytes(tmp_path) == rates.caches_nbytes(tmp_path / "nowhere") == 0


async def test_where_operations_run_in_ram_there_is_no_link_to_measure(tmp_path: Path) -> None:
    """Its probes would need two memories, and one pushed the tiles of the other into the file."""
    async with Engine("cpu", host_memory="256KiB", spill=tmp_path) as engine:
        assert await engine.rates(fills_demand(tiles_of(40, 64, 64))) is None
        assert engine.statistics().operations == 0
