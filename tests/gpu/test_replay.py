"""Steps replayed as CUDA graphs on a real GPU have the bits of steps issued one operation after another.

This must hold wherever tiles move. tests/execute/graphs tests graphs whose open order is drawn at random, on the driver of
tests/cuda/driver.py. Here the GPU decides.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.layers import Trainer
from tests.gpu.conftest import NAME
from tests.inside_engine import device_of
from tests.layers.shapes import Shape
from tests.layers.training import OPTIMIZER, SMALL, TWO_BLOCKS, Tensors, assert_same_tensors, batches_of, lively, moments_of

pytestmark = pytest.mark.gpu

#: A hanging run must not take the whole GPU time with it.
PROGRESS_S = 60
STEPS = 5  # step 1 is issued, step 2 captured and replayed; all later steps are replayed if nothing comes between


@pytest.fixture
def shape(rehearsed: bool) -> Shape:
    return SMALL if rehearsed else TWO_BLOCKS


def share(shape: Shape, part: float) -> int:
    """Return this part of the bytes of the model's states."""
    return int(part * shape.config.states_nbytes)


#: Differences between trainings: the cap as a part of the states, the trainer's options, whether validations come between.
WAYS: dict[str, tuple[float | None, dict[str, Any], bool]] = {
    "no cap": (None, {}, False),
    "a cap": (0.5, {}, False),
    "updates in RAM": (0.5, {"update": "host"}, False),
    "some updates in RAM": (0.5, {"update": "auto"}, False),
    "clipped": (0.5, {"clip_norm": 0.5}, False),
    "clipped without a cap": (None, {"clip_norm": 0.5}, False),
    "validations between": (0.5, {}, True),
    "validations between without a cap": (None, {}, True),
}


class Trained:
    """The results that two trainings must share, and the number of graphs that each launched."""

    def __init__(self) -> None:
        self.numbers: list[tuple[float, ...]] = []
        self.tensors: Tensors = {}
        self.launches = 0

    @classmethod
    async def of(
        cls, shape: Shape, *, plays: bool, precision: str = "bf16", validates: bool = False,
        engine: dict[str, Any], trainer: dict[str, Any],
    ) -> Trained:  # fmt: skip
        found = cls()
        async with asyncio.timeout(PROGRESS_S), Engine(NAME, precision=precision, **engine) as opened:
            opened.plays = plays
            found.watch(device_of(opened).driver)
            training = Trainer(await lively(opened, shape), OPTIMIZER, micro_batches=shape.micro_batches, **trainer)
            await found.run(training, shape, validates)
            found.tensors = await training.model.state_dict() | await moments_of(training)
        return found

    def watch(self, driver: Any) -> None:
        launch = driver.launch_graph

        def launch_graph(graph: Any, stream: int) -> None:
            self.launches += 1
            launch(graph, stream)

        driver.launch_graph = launch_graph

    async def run(self, trainer: Trainer, shape: Shape, validates: bool) -> None:
        batches = batches_of(shape, STEPS)
        async with aclosing(trainer.run(batches)) as reports:
            async for report in reports:
                self.numbers.append((report.loss, report.grad_norm))
                if validates and report.step % 3 == 0:
                    self.numbers.append((await trainer.model.loss(*batches[0]),))


async def assert_replayed_is_issued(shape: Shape, **options: Any) -> None:
    issued = await Trained.of(shape, plays=False, **options)
    replayed = await Trained.of(shape, plays=True, **options)
    assert issued.launches == 0
    assert replayed.launches > 0, "nothing was replayed: see the log for why graphs were not captured"
    assert replayed.numbers == issued.numbers
    assert_same_tensors(replayed.tensors, issued.tensors)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
async def test_a_replayed_step_has_the_bits_of_an_issued_one(way: tuple[Any, ...], shape: Shape) -> None:
    part, trainer, validates = way
    engine = {} if part is None else {"device_memory": share(shape, part)}
    await assert_replayed_is_issued(shape, validates=validates, engine=engine, trainer=trainer)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
async def test_a_replayed_step_has_the_bits_of_an_issued_one_in_every_precision(precision: str, shape: Shape) -> None:
    await assert_replayed_is_issued(shape, precision=precision, engine={"device_memory": share(shape, 0.5)}, trainer={})


@pytest.mark.parametrize("update", ["device", "host"])
async def test_so_it_has_over_a_folder(update: str, shape: Shape, tmp_path: Path) -> None:
    caps = {"device_memory": share(shape, 0.5), "host_memory": share(shape, 0.5) + (300 << 10), "spill": tmp_path}
    await assert_replayed_is_issued(shape, engine=caps, trainer={"update": update})


async def test_a_replayed_step_after_one_of_another_shape_has_the_bits_of_an_issued_one(shape: Shape) -> None:
    """The graphs of a shape are launched again or captured anew; either way they contain nothing of the other shape."""
    engine = {"device_memory": share(shape, 0.5)}
    found = []
    for plays in (False, True):
        async with asyncio.timeout(PROGRESS_S), Engine(NAME, precision="bf16", **engine) as opened:
            opened.plays = plays
            trainer = Trainer(await lively(opened, shape), OPTIMIZER)
            losses = []
            for tokens, targets in batches_of(shape, 3):
                for rows in (slice(None), slice(1)):
                    losses += [(await trainer.step(tokens[rows], targets[rows])).loss for _ in range(3)]
            found.append((losses, await trainer.model.state_dict()))
    assert found[0][0] == found[1][0]
    assert_same_tensors(found[1][1], found[0][1])
