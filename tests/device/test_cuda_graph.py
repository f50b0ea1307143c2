"""Graphs that a GPU records: their branches, what they capture and leave out, and drivers that refuse.

The driver is on the CPU and runs a graph in any order that its edges allow (tests/cuda/driver.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.device.base import Node
from asynctile.device.cuda import CudaDevice
from asynctile.device.cuda_graph import COMPUTE, DOWN, UP, edges, order
from asynctile.ops import copy, fill
from asynctile.schedule.schedule import Kind
from asynctile.storage.tile import Tile
from tests.cuda.build import missing
from tests.cuda.driver import SoftDriver
from tests.device.test_cuda import slots_of
from tests.settle import until

TILES = Tile("a", (16,)), Tile("b", (16,))
SEEDS = range(6)

if why := missing():
    pytest.skip(why, allow_module_level=True)


@pytest.fixture(params=SEEDS)
def device(request: pytest.FixtureRequest) -> Iterator[CudaDevice]:
    found = CudaDevice(SoftDriver(seed=request.param))
    found.start()
    yield found
    found.close()


class Memory:
    """Arrays of 16 float32 on a device and in its pinned RAM."""

    def __init__(self, device: CudaDevice, count: int = 4) -> None:
        self._device = device
        arena, slots = slots_of(device, 64, count)
        self._arena = arena
        self.there = [device.array(slot, (16,), np.float32) for slot in slots]
        self.here = [device.numbers(8).view(np.float32) for _ in range(count)]

    def read(self, index: int) -> list[float]:
        out = np.empty(16, np.float32)
        self._device.download(out, self.there[index], ()).wait()
        return out.tolist()


def up(memory: Memory, to: int, source: int, *after: int) -> Node:
    return Node(Kind.UPLOAD, TILES[0], (memory.there[to], memory.here[source]), None, after)


def down(memory: Memory, to: int, source: int, *after: int) -> Node:
    return Node(Kind.DOWNLOAD, TILES[0], (memory.here[to], memory.there[source]), None, after)


def copied(memory: Memory, to: int, source: int, *after: int) -> Node:
    return Node(Kind.OPERATION, copy(*TILES), (memory.there[source], memory.there[to]), None, after)


def test_nodes_of_all_branches_run_after_the_nodes_they_name(device: CudaDevice) -> None:
    """Up, along and down; and the source is rewritten behind the copy that reads it."""
    memory = Memory(device)
    graph = device.recorder.record([
        up(memory, 0, 0), copied(memory, 1, 0, 0), down(memory, 1, 1, 1), up(memory, 0, 2, 1), copied(memory, 2, 0, 3),
        copied(memory, 1, 2, 2), down(memory, 3, 1, 5),
    ])  # fmt: skip
    for value in (1.0, 2.0, 3.0):
        memory.here[0][:], memory.here[2][:] = value, 10 * value
        device.recorder.replay(graph).wait()
        assert memory.here[1].tolist() == [value] * 16
        assert memory.here[3].tolist() == [10 * value] * 16
    device.recorder.forget(graph)


def test_work_launched_after_a_graph_runs_after_all_its_branches(device: CudaDevice) -> None:
    memory = Memory(device)
    graph = device.recorder.record([up(memory, 0, 0), down(memory, 1, 3)])
    memory.here[0][:] = 5.0
    device.recorder.replay(graph)
    device.launch(copy(*TILES), (memory.there[0], memory.there[1]), None, ()).wait()
    assert memory.read(1) == [5.0] * 16
    device.recorder.forget(graph)


def test_nothing_runs_during_recording_and_replay_makes_no_further_calls(device: CudaDevice) -> None:
    memory = Memory(device)
    device.launch(fill(TILES[0], 1.0), memory.there[:1], None, ()).wait()
    graph = device.recorder.record([Node(Kind.OPERATION, fill(TILES[0], 3.0), (memory.there[0],), None, ())])
    assert memory.read(0) == [1.0] * 16
    launches = device.driver.launches
    device.recorder.replay(graph).wait()
    assert memory.read(0) == [3.0] * 16
    assert device.driver.launches == launches
    device.recorder.forget(graph)


def test_work_released_by_a_disk_during_recording_runs_once_and_is_not_in_the_graph(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, gate = Memory(device), threading.Event()
    disk = device.add_stream("disk", 1)
    disk.start()
    read = disk.enqueue((), gate.wait, ())
    beside = device.launch(fill(TILES[1], 9.0), memory.there[1:2], None, (read,))
    begin = device.driver.begin_capture

    def let_go(stream: int) -> None:
        begin(stream)
        gate.set()
        read.wait()  # its waiters have been released before

    monkeypatch.setattr(device.driver, "begin_capture", let_go)
    graph = device.recorder.record([Node(Kind.OPERATION, fill(TILES[0], 3.0), (memory.there[0],), None, ())])
    beside.wait()
    assert memory.read(1) == [9.0] * 16
    device.launch(fill(TILES[1], 0.0), memory.there[1:2], None, ()).wait()
    device.recorder.replay(graph).wait()
    assert (memory.read(0), memory.read(1)) == ([3.0] * 16, [0.0] * 16)
    device.recorder.forget(graph)


@pytest.mark.parametrize("call", ["begin_capture", "end_capture", "copy", "wait"])
def test_a_graph_that_the_driver_refuses_leaves_the_device_unchanged(
    device: CudaDevice, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, true = Memory(device), getattr(device.driver, call)
    left = 1

    def refuse(*args: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            if call == "end_capture":
                true(*args)
            raise RuntimeError("the driver says no")
        return true(*args)

    nodes = [up(memory, 0, 0), copied(memory, 1, 0, 0)]
    monkeypatch.setattr(device.driver, call, refuse)
    with pytest.raises(RuntimeError, match="says no"):
        device.recorder.record(nodes)
    memory.here[0][:] = 4.0
    device.launch(fill(TILES[0], 3.0), memory.there[:1], None, ()).wait()
    assert memory.read(0) == [3.0] * 16
    graph = device.recorder.record(nodes)
    device.recorder.replay(graph).wait()
    assert memory.read(1) == [4.0] * 16
    device.recorder.forget(graph)


def test_a_graph_forgotten_while_its_run_hangs_still_exists_when_it_is_launched(device: CudaDevice) -> None:
    memory, gate = Memory(device), threading.Event()
    host = device.add_stream("slow", 1)
    host.start()
    graph = device.recorder.record([up(memory, 0, 0)])
    memory.here[0][:] = 2.0
    run = device.recorder.replay(graph, (), (host.enqueue((), gate.wait, ()),))
    device.recorder.forget(graph)
    gate.set()
    run.wait()
    assert run.error is None and memory.read(0) == [2.0] * 16


async def test_a_graph_is_seen_to_land_while_the_next_one_runs_though_nobody_waits_for_it(device: CudaDevice) -> None:
    memory, gates = Memory(device), [threading.Event(), threading.Event()]
    compute = device.streams()[0]
    graph = device.recorder.record([up(memory, 0, 0)])
    runs = []
    try:
        for gate in gates:
            device.driver.hold(gate, compute.handle)
            runs += [device.recorder.replay(graph) for _ in range(2)]
        gates[0].set()
        await until(lambda: runs[1].done)
        assert compute.finished == 2 and not runs[2].done
    finally:
        for gate in gates:
            gate.set()
    runs[-1].wait()
    device.recorder.forget(graph)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    """Draw the branches of nodes, and the nodes that each must come after."""
    branches = draw(st.lists(st.integers(0, 2), max_size=24))
    return branches, [draw(st.lists(st.integers(0, index - 1), max_size=4)) if index else [] for index in range(len(branches))]


def ancestors(branches: list[int], behind: list[list[int]]) -> list[set[int]]:
    """Return, for each node, all nodes that it comes after: through its branch and through edges."""
    found: list[set[int]] = []
    for index, others in enumerate(behind):
        on_branch = [before for before in range(index) if branches[before] == branches[index]][-1:]
        found.append(set().union(*({before} | found[before] for before in (*on_branch, *others))))
    return found


@given(graphs())
def test_edges_put_each_node_after_all_that_it_names_and_none_is_redundant(
    graph: tuple[list[int], list[list[int]]]
) -> None:
    branches, after = graph
    behind = edges(branches, after)
    whole = ancestors(branches, behind)
    assert all(whole[index].issuperset(others) for index, others in enumerate(after))
    for index, others in enumerate(behind):
        assert all(branches[before] != branches[index] for before in others)
        for left_out in others:
            without = [[one for one in each if (at, one) != (index, left_out)] for at, each in enumerate(behind)]
            assert left_out not in ancestors(branches, without)[index]


@given(graphs())
def test_nodes_are_enqueued_after_all_nodes_they_depend_on(graph: tuple[list[int], list[list[int]]]) -> None:
    branches, after = graph
    behind = edges(branches, after)
    found, whole = order(branches, behind), ancestors(branches, behind)
    assert sorted(found) == list(range(len(branches)))
    at = {index: number for number, index in enumerate(found)}
    assert all(at[before] < at[index] for index in found for before in whole[index])


def test_compute_is_enqueued_before_copies_beside_it_and_after_those_it_waits_for() -> None:
    branches, behind = [COMPUTE, DOWN, UP, COMPUTE, UP, COMPUTE], [[], [0], [], [], [3], [4]]
    assert order(branches, behind) == [0, 3, 1, 2, 4, 5]
