"""Two jobs side by side on one engine, each with a share of its caps: bits and moves as alone on an engine of that size.

tests/test_share.py tests the limits of a share.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import BudgetError, DeviceError, Engine
from asynctile.layers import GPT2, Trainer
from asynctile.share import runtime_of
from tests.inside_engine import device_of
from tests.laws import law
from tests.layers.training import LONE, OPTIMIZER, Tensors, assert_same_tensors, batches_of, lively, states_of
from tests.settle import HANG_S

STEPS = 4  # on a GPU, step 1 loads tiles, step 2 captures graphs, later steps replay them
STATES = LONE.config.states_nbytes
#: The caps of a job on device, RAM and disk: the device, its caps by name, and whether there is a disk below.
PLACES: dict[str, tuple[str, dict[str, int], bool]] = {
    "cpu": ("cpu", {"host_memory": 2 * STATES}, False),
    "cpu over a disk": ("cpu", {"host_memory": 130 << 10, "spill_limit": 16 << 20}, True),
    "emulated, all resident": ("emulated", {"device_memory": 3 * STATES, "host_memory": 3 * STATES}, False),
    "emulated, streamed": ("emulated", {"device_memory": STATES // 3, "host_memory": 3 * STATES}, False),
    "emulated over a disk": (
        "emulated", {"device_memory": STATES // 3, "host_memory": 160 << 10, "spill_limit": 16 << 20}, True,
    ),
    "cuda, all resident": ("cuda:0", {"device_memory": 3 * STATES, "host_memory": 3 * STATES}, False),
    "cuda, streamed": ("cuda:0", {"device_memory": STATES // 2, "host_memory": 3 * STATES}, False),
    "cuda over a disk": (
        "cuda:0", {"device_memory": STATES // 2, "host_memory": 160 << 10, "spill_limit": 16 << 20}, True,
    ),
}  # fmt: skip


#: The results of trainings alone, by place and seed.
_TRAINED: dict[tuple[Any, ...], Trained] = {}


@dataclass
class Place:
    """The place where a job runs: an engine of its own, or half of one."""

    device: str
    caps: dict[str, int]
    spill: Path | None

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Any]:
        async with Engine(self.device, spill=self.spill, **self.caps) as engine:  # type: ignore[arg-type]
            yield engine

    async def trained_alone(self, seed: int) -> Trained:
        """Train on an engine of its own; the result is cached for all tests."""
        key = self.device, *self.caps.items(), seed
        if key not in _TRAINED:
            async with self.alone() as engine:
                _TRAINED[key] = await trained(engine, seed)
        return _TRAINED[key]

    async def generated_alone(self) -> list[int]:
        async with self.alone() as engine:
            return await generated(engine)

    def times(self, jobs: int) -> Engine:
        caps = {name: jobs * value + (64 << 10) for name, value in self.caps.items()}
        return Engine(self.device, spill=self.spill, **caps)  # type: ignore[arg-type]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    device, caps, spills = PLACES[request.param]
    if device == "cuda:0":
        request.getfixturevalue("soft_gpu")
    return Place(device, caps, tmp_path if spills else None)


@dataclass
class Trained:
    losses: list[float]
    moved: list[tuple[int, ...]]
    states: Tensors


async def trained(engine: Any, seed: int) -> Trained:
    trainer = Trainer(await lively(engine, LONE, seed), OPTIMIZER, micro_batches=LONE.micro_batches, update="device")
    reports = [report async for report in trainer.run(batches_of(LONE, STEPS, first=seed))]
    moved = [(one.uploaded_bytes, one.downloaded_bytes, one.spill_read_bytes, one.spill_written_bytes) for one in reports]
    return Trained([one.loss for one in reports], moved, await states_of(trainer))


async def generated(engine: Any) -> list[int]:
    model = await lively(engine, LONE, 3)
    return [token async for token in model.generate([1, 2, 3], max_new_tokens=12, seed=5)]


def assert_same(found: Trained, expected: Trained) -> None:
    assert found.losses == expected.losses
    assert_same_tensors(found.states, expected.states)
    assert found.moved == expected.moved


@pytest.mark.parametrize(
    "place",
    [
        "emulated over a disk",
        *map(law, ("cpu", "cpu over a disk", "emulated, all resident", "emulated, streamed", "cuda, all resident",
                   "cuda, streamed", "cuda over a disk")),
    ],
    indirect=True,
)  # fmt: skip
async def test_two_trainings_side_by_side_have_the_bits_and_moves_of_each_alone(place: Place) -> None:
    expected = [await place.trained_alone(seed) for seed in (1, 2)]
    async with place.times(2) as engine, engine.share(**place.caps) as one, engine.share(**place.caps) as other:
        found = await asyncio.gather(trained(one, 1), trained(other, 2))
    for a, b in zip(found, expected, strict=True):
        assert_same(a, b)
    up, _, read, _ = expected[0].moved[-1]
    assert (read > 0) == (place.spill is not None)
    if place.caps.get("device_memory", 3 * STATES) < 3 * STATES:
        assert up > STATES // 4


@pytest.mark.parametrize(
    ("place", "plays"),
    [("emulated over a disk", True), law("cpu", False), law("cpu", True), law("emulated, streamed", True),
     law("emulated over a disk", False), law("cuda, streamed", False)],
    indirect=["place"],
)  # fmt: skip
async def test_turns_change_no_bit_of_two_trainings_and_of_requests_between(place: Place, plays: bool) -> None:
    async with (
        place.times(3) as engine,
        engine.share(**place.caps) as one,
        engine.share(**place.caps, weight=2.5) as other,
        engine.share(**place.caps, interactive=True) as asked,
    ):
        for part in (one, other, asked):
            part.plays = plays
        found = await asyncio.gather(trained(one, 1), trained(other, 2), generated(asked))
        waited = [runtime_of(part).turn.waited_s for part in (one, other)]
    for seed, training in zip((1, 2), found, strict=False):
        expected = await place.trained_alone(seed)
        assert training.losses == expected.losses  # the moves depend on whether it is played
        assert_same_tensors(training.states, expected.states)
    assert found[2] == await place.generated_alone()
    assert max(waited) > 0, "neither was held back"


class GatedFile:
    """A spill file whose reads wait at a gate."""

    def __init__(self, file: Any, gate: threading.Event, reached: threading.Event) -> None:
        self._file, self._gate, self._reached = file, gate, reached

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def preadv(self, *args: Any) -> Any:
        if not self._gate.is_set():
            self._reached.set()
            self._gate.wait()
        return self._file.preadv(*args)


async def test_work_released_by_a_disk_in_one_share_stays_out_of_the_graph_captured_by_another(
    soft_gpu: Any, tmp_path: Path
) -> None:
    resident = Place("cuda:0", PLACES["cuda, all resident"][1], None)
    over_a_disk = Place("cuda:0", PLACES["cuda over a disk"][1], tmp_path)
    expected = []
    for seed, place in ((1, resident), (2, over_a_disk)):
        async with place.alone() as engine:
            expected.append((await trained(engine, seed)).losses)
    gate, reached, let_go = threading.Event(), threading.Event(), []
    gate.set()

    def wrap(file: Any) -> GatedFile:
        return GatedFile(file, gate, reached)

    whole = {"device_memory": 6 * STATES, "host_memory": 8 * STATES}
    async with (
        Engine("cuda:0", spill=tmp_path, wrap_spill=wrap, **whole) as engine,  # type: ignore[arg-type]
        engine.share(**resident.caps) as one,
        engine.share(**over_a_disk.caps) as other,
    ):
        trainers = []
        for seed, part in ((1, one), (2, other)):
            model = await lively(part, LONE, seed)
            trainers.append(Trainer(model, OPTIMIZER, micro_batches=LONE.micro_batches, update="device"))
        batches = [batches_of(LONE, STEPS, first=seed) for seed in (1, 2)]
        losses = [[(await trainers[0].step(*batches[0][0])).loss], []]
        device = device_of(engine)
        upload, begin = device.streams()[1], device.driver.begin_capture

        def begin_and_open(stream: int) -> None:
            begin(stream)
            if not gate.is_set():
                before = upload.finished
                gate.set()
                let_go.append(passes(lambda: upload.finished > before))

        device.driver.begin_capture = begin_and_open
        gate.clear()
        reached.clear()
        step = asyncio.create_task(trainers[1].step(*batches[1][0]))
        assert await asyncio.to_thread(reached.wait, HANG_S)
        losses[0].append((await trainers[0].step(*batches[0][1])).loss)
        losses[1].append((await step).loss)
        for index in range(2):
            losses[index] += [(await trainers[index].step(*batch)).loss for batch in batches[index][len(losses[index]) :]]
    assert let_go == [True]
    assert losses == expected


def passes(condition: Callable[[], bool]) -> bool:
    """Return whether `condition` comes true in other threads within HANG_S; blocks this thread."""
    until = time.monotonic() + HANG_S
    while not condition() and time.monotonic() < until:
        time.sleep(1e-3)
    return condition()


async def test_an_engine_trains_beside_a_share_and_with_the_whole_memory_afterwards(tmp_path: Path) -> None:
    caps = {"device_memory": STATES // 2, "host_memory": 3 * STATES}
    async with Engine("emulated", **caps) as engine:  # type: ignore[arg-type]
        expected = await trained(engine, 1)
    async with Engine("emulated", device_memory=STATES, host_memory=6 * STATES) as engine:
        model = await lively(engine, LONE, 1)
        trainer = Trainer(model, OPTIMIZER, micro_batches=LONE.micro_batches, update="device")
        batches = batches_of(LONE, STEPS)
        losses = [(await trainer.step(*batches[0])).loss]
        async with engine.share(**caps) as part:
            assert engine.statistics().device_memory_bytes == part.statistics().device_memory_bytes == STATES // 2
            beside = asyncio.create_task(trained(part, 1))
            losses += [(await trainer.step(*batch)).loss for batch in batches[1:3]]
            assert_same(await beside, expected)
        assert engine.statistics().device_memory_bytes == STATES
        losses += [(await trainer.step(*batches[3])).loss]
        assert losses == expected.losses
        assert_same_tensors(await states_of(trainer), expected.states)


async def test_a_share_gives_everything_back_at_its_end_even_tiles_never_released(tmp_path: Path) -> None:
    async with Engine("emulated", device_memory=STATES, host_memory=4 * STATES, spill=tmp_path) as engine:
        before = engine.statistics()
        for _ in range(3):
            async with engine.share(device_memory=STATES // 2, host_memory=STATES // 2, spill_limit="4MiB") as part:
                await trained(part, 1)
                assert part.statistics().host_used_bytes > 0
                assert engine.statistics().spill_used_bytes == 4 << 20
            with pytest.raises(DeviceError, match=r"the share of the engine has ended"):
                await runtime_of(part).synchronize()
        after = engine.statistics()
    assert (after.device_memory_bytes, after.host_memory_bytes) == (before.device_memory_bytes, before.host_memory_bytes)
    assert after.spill_used_bytes == after.host_used_bytes == after.device_used_bytes == 0


async def test_a_share_that_would_leave_too_little_is_refused_and_nothing_changes() -> None:
    async with Engine("emulated", device_memory=STATES // 2, host_memory=4 * STATES) as engine:
        model = await lively(engine, LONE, 1)
        trainer = Trainer(model, OPTIMIZER, micro_batches=LONE.micro_batches, update="device")
        batches = batches_of(LONE, 2)
        await trainer.step(*batches[0])
        for caps, argument in (
            ({"device_memory": STATES // 2, "host_memory": STATES}, "device_memory"),  # everything
            ({"device_memory": STATES // 2 - 4096, "host_memory": STATES}, "device_memory"),  # less than a step's floor is left
            ({"device_memory": STATES // 8, "host_memory": 4 * STATES - 4096}, "host_memory"),  # its own tiles are there
        ):
            with pytest.raises(BudgetError, match=argument):
                async with engine.share(**caps):
                    raise AssertionError("lent")
        assert engine.statistics().device_memory_bytes == STATES // 2
        assert (await trainer.step(*batches[1])).loss > 0


async def test_sizes_that_do_not_fit_the_engine_are_refused() -> None:
    async with Engine("cpu", host_memory="8MiB") as engine:
        with pytest.raises(ValueError, match="device_memory does not go with device 'cpu'"):
            async with engine.share(device_memory="1MiB", host_memory="1MiB"):
                pass
        with pytest.raises(ValueError, match="spill_limit without spill"):
            async with engine.share(host_memory="1MiB", spill_limit="1MiB"):
                pass
        with pytest.raises(ValueError, match="host_memory is 0"):
            async with engine.share(host_memory=0):
                pass
    async with Engine("emulated", device_memory="1MiB") as engine:
        with pytest.raises(ValueError, match="a share of emulated needs device_memory"):
            async with engine.share(host_memory="1MiB"):
                pass


async def test_a_share_whose_block_is_cancelled_is_taken_back() -> None:
    async with Engine("cpu", host_memory="64MiB") as engine:
        entered = asyncio.Event()

        async def block() -> None:
            async with engine.share(host_memory="8MiB") as part:
                await lively(part, LONE, 1)
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(block())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.statistics().host_memory_bytes == 64 << 20
        model = await GPT2.create(engine, LONE.config, seed=1, tile=LONE.tile)
        assert np.isfinite(await model.loss(*batches_of(LONE, 1)[0]))


async def test_a_share_ends_after_its_save_in_the_background(tmp_path: Path) -> None:
    async with Engine("emulated", device_memory=4 * STATES, host_memory=12 * STATES) as engine:
        async with engine.share(device_memory=2 * STATES, host_memory=8 * STATES) as part:
            model = await lively(part, LONE, 1)
            trainer = Trainer(model, OPTIMIZER, micro_batches=LONE.micro_batches)
            await trainer.step(*batches_of(LONE, 1)[0])
            expected = await model.state_dict()
            await trainer.save(tmp_path / "saved", wait=False)
        assert runtime_of(engine).tiers.host.arena.lent_nbytes == 0
        await trainer.saved()
        loaded = await Trainer.load(engine, tmp_path / "saved")
        assert_same_tensors(await loaded.model.state_dict(), expected)


async def test_lending_that_is_cancelled_at_any_moment_leaves_the_engine_whole() -> None:
    async with Engine("emulated", device_memory=STATES, host_memory=4 * STATES) as engine:
        trainer = Trainer(await lively(engine, LONE, 1), OPTIMIZER, micro_batches=LONE.micro_batches, update="device")
        batches = batches_of(LONE, 8)

        async def borrow() -> None:
            async with engine.share(device_memory=STATES // 2, host_memory=STATES):
                pass

        losses = []
        for turns, batch in enumerate(batches):
            losses.append((await trainer.step(*batch)).loss)
            task = asyncio.create_task(borrow())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            found = engine.statistics()
            assert (found.device_memory_bytes, found.host_memory_bytes) == (STATES, 4 * STATES)
    async with Engine("emulated", device_memory=STATES, host_memory=4 * STATES) as engine:
        trainer = Trainer(await lively(engine, LONE, 1), OPTIMIZER, micro_batches=LONE.micro_batches, update="device")
        assert [(await trainer.step(*batch)).loss for batch in batches] == losses
