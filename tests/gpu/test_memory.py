"""The memory that an engine takes of a real GPU, by the driver's own count, and gives back."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from asynctile import Engine, device
from asynctile.device.cuda import RESERVE_NBYTES
from asynctile.layers import GPT2, GPT2Config, Trainer
from asynctile.share import runtime_of
from tests.gpu.conftest import NAME
from tests.inside_engine import device_of
from tests.layers.training import SMALL, lively

pytestmark = pytest.mark.gpu

CONFIG = GPT2Config(n_layer=4, n_head=8, n_embd=512, block_size=256, vocab_size=8000)


@pytest.fixture
def config(rehearsed: bool) -> GPT2Config:
    return SMALL.config if rehearsed else CONFIG


def free_now() -> int:
    """Return the driver's count of free bytes; creates this process's context if there is none yet."""
    gc.collect()
    driver = device.open_driver(NAME)
    try:
        return driver.memory()[0]
    finally:
        driver.close()


class Watched:
    """The driver of an open engine, from which only tiles take memory from now on.

    least: the fewest free bytes it saw. most: the most bytes taken at once.
    """

    def __init__(self, engine: Engine) -> None:
        self.driver: Any = device_of(engine).driver
        self.least = self.driver.memory()[0]
        self.most = 0
        self._taken: dict[int, int] = {}
        self._malloc, self._free = self.driver.malloc, self.driver.free
        self.driver.malloc, self.driver.free = self.malloc, self.free

    def malloc(self, nbytes: int) -> int:
        address = int(self._malloc(nbytes))
        self._taken[address] = nbytes
        self.most = max(self.most, sum(self._taken.values()))
        self.look()
        return address

    def free(self, address: int) -> None:
        self._taken.pop(address, None)
        self._free(address)

    def look(self) -> None:
        self.least = min(self.least, self.driver.memory()[0])


@pytest.mark.parametrize("share", [0.25, 0.5, None])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
async def test_a_training_stays_below_its_cap_and_otherwise_below_the_reserve(
    share: float | None, precision: str, config: GPT2Config, rehearsed: bool
) -> None:
    """The reserve is for workspaces (cuDNN's is the largest), for kernels, and for slabs that are not full where all fits."""
    cap = 4 * config.states_nbytes if share is None else max(int(share * config.states_nbytes), 48 << 10)
    before = free_now()
    async with Engine(NAME, device_memory=cap, precision=precision) as engine:
        watched = Watched(engine)
        if rehearsed:
            before = watched.least
        model = await GPT2.create(engine, config, seed=1, tile=SMALL.tile if rehearsed else None)
        trainer = Trainer(model)
        tokens, targets = SMALL.batch_of_tokens()
        for _ in range(4):
            await trainer.step(tokens, targets)
            watched.look()
        assert engine.statistics().device_peak_bytes <= cap
    assert share is None or watched.most <= cap, "tiles took more than their cap"
    assert before - watched.least <= cap + RESERVE_NBYTES


async def test_memory_of_an_engine_is_free_again_after_it_has_closed() -> None:
    first = await _trained()
    assert abs(first - await _trained()) <= 32 << 20, "each engine leaves something behind"


async def _trained() -> int:
    async with Engine(NAME, precision="bf16") as engine:
        trainer = Trainer(await lively(engine, SMALL), micro_batches=SMALL.micro_batches)
        for _ in range(3):
            await trainer.step(*SMALL.batch_of_tokens())
    return free_now()


async def test_the_default_cap_of_an_engine_is_the_free_memory() -> None:
    async with Engine(NAME, precision="bf16") as engine:  # with cuDNN's workspace
        assert runtime_of(engine).device_cap is not None
        assert runtime_of(engine).device_cap <= free_now()
