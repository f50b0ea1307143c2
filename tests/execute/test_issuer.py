"""Schedules carried out by coroutines: entries wait for the futures they name, lanes run ahead, each entry is enqueued once.

The device only records its calls. tests/execute/test_packed.py tests bits on real devices.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.execute.issuer import COMPUTE, DOWN, HOST, LOAD, STORE, UP, Issuer, lanes_of
from asynctile.execute.workers.places import FAILED, OK, PENDING
from asynctile.memory.placed import Placed
from asynctile.schedule.decide import decide
from asynctile.schedule.schedule import Kind, Place, Schedule, tier_of
from asynctile.streams.event import StreamEvent
from asynctile.streams.gate import CLOSED, OPEN, Gate
from asynctile.streams.run_ahead import RUN_AHEAD_OPERATIONS, RunAhead
from tests.execute.devices import spread
from tests.laws import examples
from tests.schedule.made import program_by
from tests.schedule.spaces import KINDS, SIZES, space_by


def drawn(seed: int, kind: str = "device+ over ram+") -> Schedule | None:
    chance = random.Random(f"{seed} {kind}")
    program = program_by(chance, sizes=SIZES, entries=chance.choice((6, 30, 60)))
    return decide(program, space_by(chance, program, kind))


class On:
    """Device `number` of a Noted, which records what is enqueued here."""

    def __init__(self, noted: Noted, number: int) -> None:
        self.noted = noted
        self.number = number

    def launch(self, operation: Any, arrays: Any, number: Any, waits: Any, after: Any) -> StreamEvent:
        return self.noted.note(arrays[0], waits, after, self.number)

    launch_on_host = launch

    def upload(self, to: Any, source: Any, waits: Any, after: Any, what: Any) -> StreamEvent:
        return self.noted.note(to, waits, after, self.number)

    copy = download = receive = upload


class Noted:
    """Devices, and the spill file below them, that record enqueued work and do nothing. fails: entries that are refused."""

    def __init__(self, schedule: Schedule, fails: Sequence[int] = (), devices: int = 1) -> None:
        self.schedule = schedule
        self.fails = fails
        self.gate = Gate()
        self.run_ahead = RunAhead(list, None)
        self.events: dict[int, StreamEvent] = {}
        self.order: list[int] = []
        placed = Placed(schedule, lambda place, shape, dtype: self, np.zeros(len(schedule.program.numbers) + 1))
        placed.operands = lambda index: (index, index)  # type: ignore[method-assign, assignment, return-value]
        placed.array = lambda place, tile: self  # type: ignore[method-assign]
        placed.number = lambda operation: None  # type: ignore[method-assign]
        fetching = [index for index, entry in enumerate(schedule.entries) if entry.kind is Kind.FETCH]
        fetches = zip(schedule.program.fetches, fetching, strict=True)
        outputs = {fetch.key: {fetch.index: index} for fetch, index in fetches}  # each fetch fills the index of its entry
        on: Any = [On(self, number) for number in range(devices)]
        self.issuer = Issuer(placed, on, self.run_ahead, self.gate, outputs)
        self.issuer.on_transfer = lambda index, after: self.note(index, (), after, 0)

    def note(self, index: int, waits: Sequence[StreamEvent], after: Sequence[StreamEvent], device: int) -> StreamEvent:
        entry = self.schedule.entries[index]
        assert entry.device == device, "each entry is enqueued on its own device"
        assert index not in self.events, "each entry is enqueued once"
        named = {before: self.events.get(before) for before in (*entry.waits, *entry.after)}
        begun = [one is not None or self.issuer.failure(before) is not None for before, one in named.items()]
        assert all(begun), "and behind those that it names"
        self.order.append(index)
        event = self.events[index] = StreamEvent(what=index)
        event.error = ValueError("refused") if index in self.fails else next((one.error for one in waits if one.error), None)
        event.done = event.error is not None
        if index in self.fails:
            raise ValueError("refused")
        given = entry.after if entry.kind is Kind.TRANSFER else named
        assert {one for before in given if (one := named[before]) is not None and not one.done} <= {*waits, *after}
        return event

    def run(self) -> None:
        """Run all enqueued work."""
        for event in list(self.events.values()):
            if not event.done:
                event.done = True
                event.wake()

    async def finish(self) -> None:
        """Release, enqueue and run the whole schedule."""
        self.issuer.release(len(self.schedule.stretches) - 1)
        task = asyncio.create_task(self.issuer.hand_over())
        while not task.done():
            self.run()
            await asyncio.sleep(0)
        await task
        self.run()


@pytest.mark.parametrize("kind", KINDS)
@examples(25)
@given(seed=st.integers(0, 1 << 32), devices=st.integers(1, 3))
def test_every_entry_is_enqueued_once_and_after_all_that_it_names(kind: str, seed: int, devices: int) -> None:
    schedule = drawn(seed, kind)
    if schedule is not None:
        schedule = spread(schedule, devices, seed)
        device = Noted(schedule, devices=devices)
        asyncio.run(device.finish())
        assert sorted(device.order) == [*range(len(schedule))] and (device.issuer.statuses == OK).all()
        for lane in lanes_of(schedule.entries, devices).values():
            assert [index for index in device.order if index in lane] == lane


@cache
def a_schedule() -> Schedule:
    """Return a step over three tiers that has work for every lane."""
    found = (drawn(seed) for seed in range(1000))
    return next(one for one in found if one is not None and len(lanes_of(one.entries, 1)) == 6 and len(one) > 60)


def behind(schedule: Schedule, first: int) -> set[int]:
    """Return an entry and all entries that need its result."""
    found = {first}
    for index, entry in enumerate(schedule.entries):
        found |= {index} if found.intersection(entry.waits) else set()
    return found


async def test_entries_wait_for_futures_and_transfers_run_ahead_of_compute() -> None:
    schedule = a_schedule()
    device, lanes = Noted(schedule), lanes_of(schedule.entries, 1)
    await device.finish()
    place, compute = {index: at for at, index in enumerate(device.order)}, lanes[COMPUTE, 0]
    reached = [(place[last], schedule.entries[one]) for lane in lanes.values() for last, one in pairwise(lane)]
    waited = [before for at, entry in reached for before in (*entry.waits, *entry.after) if place[before] > at]
    assert waited, "a lane came to an entry before what that names in another lane was enqueued"
    moves = [index for index in device.order if index not in compute]
    assert any(device.order.index(move) < device.order.index(one) for move in moves for one in compute if one < move)


def test_a_device_has_three_lanes_of_its_own_and_the_host_three_for_all() -> None:
    lanes = lanes_of(spread(a_schedule(), 3, 0).entries, 3)
    assert [*lanes] == [(LOAD, 0), *((UP, n) for n in range(3)), *((DOWN, n) for n in range(3)), (STORE, 0), (HOST, 0),
                        *((COMPUTE, n) for n in range(3))]  # fmt: skip


async def test_a_busy_device_does_not_keep_the_host_from_running_ahead_of_another() -> None:
    schedule = next(one for seed in range(1000) if (one := drawn(seed)) is not None and not one.program.fetches)
    entry = next(entry for entry in schedule.entries if entry.kind is Kind.OPERATION)
    alone = [replace(entry, places=(Place(tier_of(n // 200), 64, 0),), waits=(), after=(), stretch=0) for n in range(400)]
    device = Noted(replace(schedule, entries=tuple(alone), stretches=(0,)), devices=2)
    device.issuer.release(0)
    task = asyncio.create_task(device.issuer.hand_over())
    for _ in range(20):
        await asyncio.sleep(0)
    on = [index // 200 for index in device.order]
    assert [on.count(0), on.count(1)] == [RUN_AHEAD_OPERATIONS] * 2
    while not task.done():
        device.run()
        await asyncio.sleep(0)
    assert len(device.order) == 400


@pytest.mark.parametrize("turns", range(1, 30))
async def test_an_issuer_cancelled_anywhere_goes_on_from_there(turns: int) -> None:
    schedule = a_schedule()
    device = Noted(schedule)
    device.issuer.release(len(schedule.stretches) - 1)
    task = asyncio.create_task(device.issuer.hand_over())
    for turn in range(turns):
        await asyncio.sleep(0)
        if turn % 3 == 0:
            device.run()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await device.finish()
    assert sorted(device.order) == [*range(len(schedule))]


@pytest.mark.parametrize("devices", [1, 3])
async def test_entries_that_depend_on_a_refused_one_get_its_error_and_the_rest_runs(devices: int) -> None:
    schedule = spread(a_schedule(), devices, 0)
    operations = [index for index, entry in enumerate(schedule.entries) if entry.kind is Kind.OPERATION]
    first, lost = max(((index, behind(schedule, index)) for index in operations), key=lambda found: len(found[1]))
    device = Noted(schedule, [first], devices)
    await device.finish()
    assert {index for index, status in enumerate(device.issuer.statuses) if status == FAILED} == lost
    assert {str(device.issuer.failure(index)) for index in lost} == {"refused"}
    assert len(lost) > 1 and (np.delete(device.issuer.statuses, [*lost]) == OK).all()


@examples(25)
@given(seed=st.integers(0, 1 << 32))
def test_an_entry_that_is_given_up_is_over_only_after_all_that_it_names(seed: int) -> None:
    """An entry behind it names it alone, and may take the bytes that the entries before it still use."""
    schedule, chance = drawn(seed), random.Random(seed)
    if schedule is not None:
        work = [index for index, entry in enumerate(schedule.entries) if entry.kind is not Kind.TRANSFER]
        asyncio.run(given_up_late(schedule, chance.sample(work, min(3, len(work)))))


async def given_up_late(schedule: Schedule, fails: Sequence[int]) -> None:
    device = Noted(schedule, fails)

    def is_over(index: int) -> bool:
        event = device.events.get(index)
        return device.issuer.failure(index) is not None or (index not in fails and event is not None and event.done)

    device.issuer.release(len(schedule.stretches) - 1)
    task = asyncio.create_task(device.issuer.hand_over())
    while not task.done():
        await asyncio.sleep(0)
        for index, entry in enumerate(schedule.entries):
            given_up = index in fails or (entry.kind is Kind.TRANSFER and index not in device.events)
            if given_up and device.issuer.failure(index) is not None:
                assert all(map(is_over, (*entry.waits, *entry.after)))
        running = next((event for event in device.events.values() if not event.done), None)
        if running is not None:
            running.done = True
            running.wake()
    await task


async def test_nothing_is_enqueued_before_its_stretch_is_released_or_while_the_gate_is_shut() -> None:
    schedule = next(found for seed in range(1000) if (found := drawn(seed)) is not None and len(found.stretches) > 2)
    device = Noted(schedule)
    device.gate.set(CLOSED)
    device.issuer.release(0)
    task = asyncio.create_task(device.issuer.hand_over())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not device.order and not task.done()
    device.gate.set(OPEN)
    while not task.done():
        device.run()
        await asyncio.sleep(0)
    assert device.order and {schedule.entries[index].stretch for index in device.order} == {0}
    assert (device.issuer.statuses[schedule.stretches[1] :] == PENDING).all()
    assert not device.issuer.reported(1) and not device.issuer.ended(1)
