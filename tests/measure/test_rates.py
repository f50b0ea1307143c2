"""The memory that the probe of a GPU uses, and the state that an interrupted probe leaves.

tests/layers/test_gemm_rate.py tests products alone, test_known.py the stored result of a probe.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.device.cuda import CudaDevice
from asynctile.measure import rates
from asynctile.measure.rates import measure_gemms, measure_gpu
from asynctile.memory.tier import Tier
from asynctile.program.needs import demand_of
from asynctile.program.precision import compute_dtype
from asynctile.schedule.rates import CORES, Rates
from asynctile.share import runtime_of
from asynctile.storage.arena import Arena
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent
from tests.cuda.idle import IdleDriver
from tests.inside_engine import device_of


async def probed(device: str, precision: str, cap: int | None) -> Rates | None:
    """Run the probe of GPUs on an engine of that device; return its rates."""
    async with Engine(device, precision=precision, device_memory="4GiB") as engine:
        return await runtime_of(engine).call(measure_gpu(device_of(engine), compute_dtype(precision), cap, CORES))


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
async def test_products_and_copies_on_a_gpu_are_as_large_as_its_tiles(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    monkeypatch.setattr("asynctile.device.open_driver", lambda name: IdleDriver())
    seen: set[tuple[str, int, int]] = set()

    def noted(what: str) -> Callable[..., StreamEvent]:
        real = getattr(CudaDevice, what)

        def note(self: CudaDevice, first: Any, second: Any, *more: Any) -> StreamEvent:
            shapes = [tile.shape for tile in first.operands] if what == "launch" else [first.shape, second.shape]
            seen.update((what, *shape) for shape in shapes)
            return real(self, first, second, *more)

        return note

    for what in ("launch", "upload", "download", "copy"):
        monkeypatch.setattr(CudaDevice, what, noted(what))
    found = await probed("cuda:0", precision, None)
    assert found is not None
    assert seen == {(what, 4096, 4096) for what in ("launch", "upload", "download", "copy")}
    assert all(0 < value < np.inf for value in found.to_json().values())
    assert (found.updated_per_s, found.copied_per_s) == (CORES.updated_per_s, CORES.copied_per_s)


async def test_a_cap_without_room_for_the_probe_of_a_gpu_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asynctile.device.open_driver", lambda name: IdleDriver())
    monkeypatch.setattr("asynctile.measure.rates.Tiers", lambda *args: pytest.fail("its memory is taken"))
    assert await probed("cuda:0", "fp32", (256 << 20) - 1) is None


async def test_a_probe_leaves_the_memory_of_a_gpu_unchanged(soft_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "GEMM_EDGE", 64)
    async with Engine("cuda:0", device_memory="8MiB") as engine:
        driver = soft_gpu.opened[-1]
        before = driver.memory()
        assert await runtime_of(engine).call(measure_gpu(device_of(engine), compute_dtype("fp32"), None, CORES)) is not None
        assert driver.memory() == before


async def test_a_cancelled_probe_gives_its_slots_back_once_nothing_writes_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, go_on = threading.Event(), threading.Event()
    events: list[StreamEvent] = []
    under_way: list[bool] = []
    monkeypatch.setattr(Arena, "may_lend", lambda arena, nbytes: False)  # so products are computed in slots
    release = Tier.release

    def released(tier: Tier, tile: Tile) -> None:
        if tile.name.startswith("probe"):
            under_way.append(not all(event.done for event in events))
        release(tier, tile)

    async def turn() -> None:
        await asyncio.sleep(0)

    async def rate(engine: Engine) -> float | None:
        runtime = runtime_of(engine)
        async with runtime.exclusive():
            await runtime.cut(demand_of([], tiles))
            return await measure_gemms(runtime.tiers, compute_dtype("fp32"))

    tiles = [Tile(f"t[{index}]", (256, 256), persistent=True) for index in range(8)]
    async with Engine("emulated", device_memory="4MiB") as engine:
        monkeypatch.setattr(Tier, "release", released)
        real = device_of(engine).launch
        gate = runtime_of(engine).file_stream.enqueue((), go_on.wait, (20,))

        def late(*args: Any) -> StreamEvent:
            events.append(real(*args[:-1], (*args[-1], gate)))
            began.set()
            return events[-1]

        monkeypatch.setattr(device_of(engine), "launch", late)
        measuring = asyncio.create_task(runtime_of(engine).call(rate(engine)))
        while not began.is_set():
            await runtime_of(engine).call(turn())
        measuring.cancel()
        for _ in range(20):
            await runtime_of(engine).call(turn())
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await measuring
        assert under_way and not any(under_way)
        monkeypatch.undo()
        assert await runtime_of(engine).call(rate(engine)) is not None
