"""Requests that a real GPU cannot meet are refused in one clear line before any work: too much memory, a missing GPU."""

from __future__ import annotations

import pytest

from asynctile import BudgetError, DeviceError, Engine
from asynctile.cli import main
from asynctile.device.cupy_driver import open_driver
from asynctile.layers import GPT2
from asynctile.share import runtime_of
from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand
from tests.gpu.conftest import NAME
from tests.layers.training import SMALL

pytestmark = pytest.mark.gpu


def test_a_cap_beyond_the_memory_names_the_available_bytes() -> None:
    with pytest.raises(BudgetError, match=r"lower device_memory \(now 64\.00 TiB\)") as caught:
        Engine(NAME, device_memory=1 << 46)
    assert "\n" not in str(caught.value)
    assert 0 < caught.value.floor < 1 << 46


def test_the_command_says_the_same_in_one_line(tmp_path, capsys, rehearsed) -> None:  # type: ignore[no-untyped-def]
    given = ["train", "--device", NAME, "--device-memory", "65536GiB", "--steps", "1", "--out", str(tmp_path / "run")]
    assert main(given) != 0
    said = capsys.readouterr().err.strip()
    assert "lower --device-memory (now 64.00 TiB)" in said
    assert "Traceback" not in said


def test_a_missing_gpu_number_names_the_existing_gpus(rehearsed: bool) -> None:
    if rehearsed:
        pytest.skip("a driver on the CPU has every number")
    with pytest.raises(DeviceError, match=r"'cuda:99' is not there: this process sees 'cuda:0'") as caught:
        Engine("cuda:99")
    assert "\n" not in str(caught.value)


def test_a_gpu_filled_by_another_process_names_the_free_bytes(rehearsed: bool) -> None:
    if rehearsed:
        pytest.skip("each driver on the CPU has a memory of its own")
    driver = open_driver(NAME)
    free = driver.memory()[0]
    taken = driver.malloc(free - (512 << 20))
    try:
        with pytest.raises(BudgetError, match=r"end the other programs on the GPU"):
            Engine(NAME)
    finally:
        driver.free(taken)
        driver.close()


async def test_memory_that_goes_missing_later_is_a_typed_error_and_the_engine_closes() -> None:
    async with Engine(NAME) as engine:
        device = runtime_of(engine).tiers.device
        cap = (runtime_of(engine).device_cap or 0) * 2
        arena = Arena(cap, evictable=True)
        for pool in arena.cut(Demand((cap,), (1,), {cap: 1}, "copy")):
            device.map_pool(pool)
        slot = arena.pools[0].take(for_load=True)
        with pytest.raises(BudgetError, match="lower device_memory, or end the other programs on the GPU"):
            device.array(slot, (4,), "float32")
        model = await GPT2.create(engine, SMALL.config, tile=SMALL.tile)
        tokens, targets = SMALL.batch_of_tokens()
        assert await model.loss(tokens, targets) > 0
