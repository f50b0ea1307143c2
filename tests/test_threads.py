"""Threads refused by the system at every point of an engine's life: the engine ends whole and results stay the same.

Playing without these threads is tested in tests/execute/workers/test_crew.py and tests/execute/test_schedules.py.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from asynctile import DeviceError, Engine
from asynctile.cli.stress.refusals import refused_threads
from asynctile.layers import Trainer
from asynctile.share import runtime_of
from tests.execute.interleaving import BATCHES, SHORT
from tests.layers.training import OPTIMIZER, lively
from tests.test_lifetime import blas, threads


async def live(spill: Path) -> list[float]:
    """Play and save a training; return its losses."""
    async with Engine("emulated", device_memory="1MiB", host_memory="64MiB", spill=spill, watchdog=60) as engine:
        trainer = Trainer(await lively(engine, SHORT), OPTIMIZER, update="device")
        losses = [report.loss async for report in trainer.run(BATCHES[:4])]
        await trainer.save(spill.parent / "checkpoint")
        return losses


@pytest.mark.parametrize("is_chosen", [int.__eq__, int.__ge__], ids=["one of them", "all from one on"])
async def test_whichever_thread_is_refused_the_engine_ends_whole_and_its_steps_are_unchanged(
    is_chosen: Callable[[int, int], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    spill = tmp_path / "spill"
    spill.mkdir()
    expected, before, refused, trained = await live(spill), blas(), [], 0
    for number in itertools.count():
        with refused_threads(lambda index, _, number=number: is_chosen(index, number)) as names:  # type: ignore[misc]
            (end,) = await asyncio.gather(live(spill), return_exceptions=True)
        if isinstance(end, DeviceError):
            assert "the system refused the thread asynctile-" in str(end) and "\n" not in str(end)
        else:
            assert end == expected
            trained += 1
        assert (threads(), blas(), [*spill.iterdir()]) == ([], before, [])
        if not names:
            break
        refused.append(names[0])
    known = ("keeper", "loop", "compute-0", "spill-3", "files-3", "upload", "batches", "player-0", "player-1")
    assert {f"asynctile-{name}" for name in known} <= {*refused}
    assert trained == 3, "without a player, in two ways, and with all"


async def test_an_engine_that_was_refused_its_first_thread_may_be_closed() -> None:
    engine = Engine("cpu")
    with refused_threads(lambda *_: True):
        with pytest.raises(DeviceError, match="refused the thread asynctile-keeper"):
            await engine.open()
        await engine.aclose()
    assert not engine.is_open


async def test_an_open_engine_asks_for_threads_only_to_play_and_to_take_batches(tmp_path: Path) -> None:
    wanted: list[str] = []

    def note(_: int, name: str) -> bool:
        wanted.append(name)
        return False

    with refused_threads(note):
        async with Engine("cpu", spill=tmp_path) as engine:
            opened = len(wanted)
            await runtime_of(engine).call(runtime_of(engine).compute(len, "in a thread"))
        assert len(wanted) == opened


async def test_a_trace_that_is_refused_its_thread_leaves_no_file_open(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        with refused_threads(lambda *_: True), pytest.raises(DeviceError, match="refused the thread asynctile-trace"):
            engine.start_trace(tmp_path / "trace.json")
        assert not engine.is_traced
        engine.start_trace(tmp_path / "trace.json")
        engine.stop_trace()
