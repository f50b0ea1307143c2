"""Other work of an engine between and beside replayed steps: no bit changes, and later steps are replayed again.

No more graphs are kept than are useful. stories.py runs random orders of such work.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.layers import GPT2, Trainer
from asynctile.ops import fill
from asynctile.share import runtime_of
from tests.execute.interleaving import BATCHES, SHORT, a_weight, played
from tests.inside_engine import device_of
from tests.laws import law
from tests.layers import stories
from tests.layers.replaying import STATES, Trained, assert_same, by_coroutines, place_of, training
from tests.layers.shapes import shape as make_shape
from tests.layers.training import OPTIMIZER, assert_same_tensors, lively, states_of
from tests.settle import settle

EVERYWHERE = [law("all there"), law("under a cap"), "over a file"]
#: Its states take some KiB of RAM.
SMALLER = make_shape(12, 2, 10, 8, tile=12, batch=1, length=4, n_layer=1)


@pytest.mark.laws
async def test_a_story_run_by_graphs_has_the_numbers_and_bits_of_coroutines(soft_gpu: Any) -> None:
    assert any(await stories.check(2, soft_gpu))


async def validation(engine: Engine, trainer: Trainer, folder: Path) -> None:
    await trainer.model.loss(*BATCHES[5])


async def text(engine: Engine, trainer: Trainer, folder: Path) -> None:
    assert len([token async for token in trainer.model.generate([1, 2], max_new_tokens=3, seed=1)]) == 3


async def gradients(engine: Engine, trainer: Trainer, folder: Path) -> None:
    await trainer.gradients(*BATCHES[5])


async def save(engine: Engine, trainer: Trainer, folder: Path) -> None:
    await trainer.saved()
    await trainer.save(folder / f"saved {trainer.step_count}", wait=False)


async def read(engine: Engine, trainer: Trainer, folder: Path) -> None:
    await trainer.model.state_dict()


async def short(engine: Engine, trainer: Trainer, folder: Path) -> None:
    """Compute the gradients of another shape."""
    tokens, targets = BATCHES[5]
    await trainer.gradients(tokens[:, :4], targets[:, :4])


async def lend(engine: Engine, trainer: Trainer, folder: Path) -> None:
    """Borrow RAM until the next call."""

    async def lent() -> None:
        async with runtime_of(engine).exclusive():
            for loan in list(runtime_of(engine).tiers.caps.loans):
                loan.give_back()
            runtime_of(engine).tiers.caps.borrow(8 << 10, "a test")

    await runtime_of(engine).call(lent())


async def part(engine: Engine, trainer: Trainer, folder: Path) -> None:
    """Train another model on a share of the caps, with texts beside it."""
    if runtime_of(engine).device_cap < 4 * STATES:
        await read(engine, trainer, folder)
        return
    async with engine.share(device_memory=STATES // 2, host_memory=4 * STATES) as share:
        other = Trainer(await lively(share, SHORT, seed=2), OPTIMIZER, update="host")
        flags, _ = await asyncio.gather(played(other, 0, 1, 2), text(engine, trainer, folder))
        assert flags == [False, True, True]


BETWEEN: dict[str, Callable[[Engine, Trainer, Path], Awaitable[None]]] = {
    one.__name__: one for one in (validation, text, gradients, save, read, short, lend, part)
}


#: Pairs rather than the product.
PAIRS = [
    ("validation", "over a file"), ("lend", "under a cap"), ("part", "all there"),
    law("gradients", "all there"), law("save", "over a file"), law("validation", "all there"), law("text", "under a cap"),
    law("short", "over a file"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "where"), PAIRS)
async def test_other_work_between_replayed_steps_changes_no_bit_and_later_steps_are_replayed(
    what: str, where: str, soft_gpu: Any, tmp_path: Path
) -> None:
    expected = await by_coroutines(soft_gpu.opened)
    soft_gpu(seed=len(what))
    async with training(place_of(where, tmp_path)) as (engine, trainer):
        found, driver = Trained(), soft_gpu.opened[-1]
        for index, batch in enumerate(BATCHES[:5]):
            await found.step(trainer, batch, driver)
            if index in (1, 2):
                await BETWEEN[what](engine, trainer, tmp_path)
        await trainer.saved()
        found.states = await states_of(trainer)
    assert_same(found, expected)
    assert found.played[4], "in play again"
    assert found.played[3] or where != "all there", "at once where everything stays"


@pytest.mark.parametrize("where", ["all there", law("under a cap")])
async def test_steps_after_other_work_keep_their_graphs(where: str, soft_gpu: Any, tmp_path: Path) -> None:
    found = Trained()
    async with training(place_of(where, tmp_path)) as (engine, trainer):
        for index in range(10):
            await found.step(trainer, BATCHES[index % 6], soft_gpu.opened[-1])
            if index % 3 == 1 and where == "under a cap":
                await validation(engine, trainer, tmp_path)
            if where == "all there" and index > 1:
                for between in (validation, text, short):
                    await between(engine, trainer, tmp_path)
    assert found.launches[6:] == [0, 0, 0, 0]


async def test_a_replayed_step_follows_operations_launched_by_hand_before_it(soft_gpu: Any, tmp_path: Path) -> None:
    found = []
    for plays in (True, False):
        soft_gpu(seed=7)
        async with training(place_of("over a file", tmp_path), plays=plays) as (engine, trainer):
            await played(trainer, 0, 1, 2)
            await runtime_of(engine).launch(fill(a_weight(trainer), 0.5))
            await played(trainer, 3)
            await runtime_of(engine).launch(fill(a_weight(trainer), 0.25))
            assert (await runtime_of(engine).read(a_weight(trainer)) == 0.25).all()
            assert (await played(trainer, 4, 5))[1] is plays
            found.append(await states_of(trainer))
    assert_same_tensors(*found)


def watched(driver: Any) -> list[Any]:
    """Return a list of all graphs captured from now on; destroyed graphs say so."""
    graphs: list[Any] = []
    end = driver.end_capture

    def watching(stream: int) -> Any:
        graphs.append(end(stream))
        return graphs[-1]

    driver.end_capture = watching
    return graphs


def alive(graphs: list[Any]) -> int:
    gc.collect()
    return sum(not graph.destroyed for graph in graphs)


@pytest.mark.parametrize("where", [law("all there"), "under a cap"])
async def test_graphs_of_past_shapes_and_of_past_caps_are_destroyed(
    where: str, soft_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asynctile.execute.templates.KEPT", 2)
    async with training(place_of(where, tmp_path)) as (engine, trainer):
        graphs, tokens, targets = watched(device_of(engine).driver), *BATCHES[0]
        counts = []
        for length in (6, 5, 4, 3, 2):
            for _ in range(3):
                report = await trainer.step(tokens[:, :length], targets[:, :length])
            assert report.played
            counts.append(alive(graphs))
        assert 0 < counts[-1] <= max(counts[:3]), counts
        assert counts[-1] < len(graphs)
        await trainer.model.release()
        del trainer
        await settle(engine)
        assert alive(graphs) == 0, "the model is gone"


@pytest.mark.parametrize("where", EVERYWHERE)
async def test_an_engine_leaves_no_graph_no_memory_and_no_pinned_ram(where: str, soft_gpu: Any, tmp_path: Path) -> None:
    async with training(place_of(where, tmp_path)) as (engine, trainer):
        driver = device_of(engine).driver
        graphs = watched(driver)
        await played(trainer, 0, 1, 2)
        assert alive(graphs) == len(graphs) > 0
    del engine, trainer
    assert alive(graphs) == 0
    assert driver.memory()[0] == driver.memory()[1]
    assert not driver.pinned
    assert not driver.streams


async def test_a_step_is_still_replayed_when_another_model_takes_the_ram_of_its_gradients(
    soft_gpu: Any,
) -> None:
    expected = await by_coroutines(soft_gpu.opened)
    async with training(place_of("under a cap", host_memory=81_500), update="host") as (engine, trainer):
        caps = runtime_of(engine).tiers.caps
        assert (await played(trainer, 0, 1, 2))[1:] == [True, True] and caps.in_turn
        await GPT2.create(engine, SMALLER.config, seed=1, tile=SMALLER.tile)
        assert await played(trainer, 3, 4) == [True, True] and not caps.in_turn
        assert_same_tensors(await states_of(trainer), expected.states)
