"""The replayer of a schedule's graphs: when it hands over each piece, on a device where nothing happens until it is told.

tests/layers/test_cuda_replayed.py tests that bits are those of coroutines.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asynctile.execute.graphs.recording import Graphs, Recording, items_of
from asynctile.execute.graphs.replayer import AHEAD, Replayer
from asynctile.schedule.pieces import cut
from asynctile.streams.event import StreamEvent
from asynctile.streams.gate import CLOSED, OPEN, Gate
from asynctile.streams.run_ahead import RunAhead
from tests.schedule.paces import GPU
from tests.schedule.test_pieces import schedule_of
from tests.settle import turns


class Slow:
    """A recorder whose graphs run until `end`. runs: events of launched graphs. waits: the events that each must follow."""

    def __init__(self) -> None:
        self.runs: list[StreamEvent] = []
        self.waits: list[tuple[StreamEvent, ...]] = []

    def record(self, nodes: Any) -> object:
        return object()

    def replay(self, graph: object, waits: Any, after: Any, what: object) -> StreamEvent:
        self.runs.append(StreamEvent())
        self.waits.append(tuple(waits))
        return self.runs[-1]

    def forget(self, graph: object) -> None: ...

    def end(self, run: int) -> None:
        self.runs[run].done = True
        self.runs[run].wake()


def recording_on(recorder: Slow, pieces: int) -> Recording:
    """Return a recording of that many pieces in one stretch."""
    found = cut(schedule_of("o" * pieces), GPU, most_s=0.0)
    recording = Recording(found, items_of(found), Graphs(recorder), lambda *_: None, np.zeros(1))
    recording.capture()
    assert len(recording.graphs.found) == pieces
    return recording


def replayer_on(recorder: Slow, gate: Gate, *, is_shared: bool) -> Replayer:
    device: Any = SimpleNamespace(recorder=recorder)
    return Replayer(device, RunAhead(list, None), gate, lambda: is_shared)


@pytest.mark.parametrize("is_shared", [True, False])
async def test_with_several_shares_only_one_running_and_one_ready_piece_are_with_the_device(
    is_shared: bool,
) -> None:
    recorder = Slow()
    replayer = replayer_on(recorder, Gate(), is_shared=is_shared)
    replayer.attach(recording_on(recorder, 4))
    replayer.begin()
    replayer.release(0)
    handing = asyncio.ensure_future(replayer.hand_over())
    for ended in range(3):
        await turns()
        assert len(recorder.runs) == (min(AHEAD + ended, 4) if is_shared else 4)
        recorder.end(ended)
    await handing


async def test_no_piece_begins_if_the_turn_ended_while_it_waited_for_earlier_pieces() -> None:
    recorder, gate = Slow(), Gate()
    replayer = replayer_on(recorder, gate, is_shared=True)
    replayer.attach(recording_on(recorder, AHEAD + 1))
    replayer.begin()
    replayer.release(0)
    handing = asyncio.ensure_future(replayer.hand_over())
    await turns()
    gate.set(CLOSED)
    recorder.end(0)
    await turns()
    assert len(recorder.runs) == AHEAD
    gate.set(OPEN)
    await handing
    assert len(recorder.runs) == AHEAD + 1


async def test_a_piece_waits_for_the_success_of_the_one_before() -> None:
    """After a failed launch memory may hold anything, and an index in it may be out of range."""
    recorder = Slow()
    replayer = replayer_on(recorder, Gate(), is_shared=False)
    replayer.attach(recording_on(recorder, 3))
    replayer.begin()
    replayer.release(0)
    await replayer.hand_over()
    assert recorder.waits == [(), (recorder.runs[0],), (recorder.runs[1],)]


async def test_only_a_piece_that_could_run_asks_for_a_turn_and_not_one_that_waits_for_the_host() -> None:
    recorder, transfers = Slow(), [StreamEvent()]
    replayer = replayer_on(recorder, Gate(), is_shared=False)
    found = cut(schedule_of("oto", {1: (0,), 2: (1,)}), GPU)
    recording = Recording(found, items_of(found), Graphs(recorder), lambda *_: None, np.zeros(1))
    recording.capture()
    replayer.attach(recording)
    replayer.on_transfer = lambda entry, after: transfers[0]
    replayer.begin()
    replayer.release(0)
    await replayer.hand_over()
    assert len(recorder.runs) == 2 and replayer.has_work(False)
    recorder.end(0)
    assert not replayer.has_work(False) and replayer.has_work(True)
    transfers[0].done = True
    assert replayer.has_work(False)
    recorder.end(1)
    assert not replayer.has_work(True)


async def test_alternating_programs_are_attached_without_a_look_at_their_entries() -> None:
    recorder = Slow()
    replayer = replayer_on(recorder, Gate(), is_shared=False)
    recordings = [recording_on(recorder, 3), recording_on(recorder, 2)]
    for recording in recordings:
        object.__setattr__(recording.schedule, "entries", Untouchable(recording.schedule.entries))
    for recording in recordings * 2:
        recorder.runs.clear()
        replayer.attach(recording)
        replayer.begin()
        replayer.release(0)
        await replayer.hand_over()
        for run in range(len(recorder.runs)):
            recorder.end(run)
        assert replayer.statuses.tolist() == [1] * len(recording.schedule)


class Untouchable(tuple[Any, ...]):
    """Entries of which only the number may be read."""

    __slots__ = ()

    def __iter__(self) -> Any:
        raise AssertionError("somebody goes through it")

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("somebody looks into it")
