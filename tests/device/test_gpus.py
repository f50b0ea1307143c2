"""The GPUs of one engine: work of one that waits for another, copies between them, one graph of all, errors, and closing.

Their drivers run on one machine made of threads (tests/cuda/node.py), which refuses what CUDA refuses across GPUs.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from asynctile import DeviceError, Engine
from asynctile.device.base import Node
from asynctile.device.cuda import CudaDevice
from asynctile.device.gpus import Gpus
from asynctile.kernels.cuda import Array
from asynctile.ops import copy, fill
from asynctile.schedule.schedule import Kind
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent
from tests.cuda.build import missing
from tests.cuda.driver import SoftDriver
from tests.cuda.graph import CudaError
from tests.cuda.node import SoftNode, opener
from tests.device.test_cuda import slots_of
from tests.inside_engine import life_of

TILES = Tile("a", (16,)), Tile("b", (16,))

if why := missing():
    pytest.skip(why, allow_module_level=True)


class Pair:
    """Two GPUs of one engine. there: arrays of 16 float32 by GPU. here: such arrays in RAM."""

    def __init__(self, seed: int | None) -> None:
        self.node, gpus = SoftNode(), Gpus(2)
        self.drivers = [SoftDriver(seed=seed, index=index, node=self.node) for index in range(2)]
        self.gpus = [CudaDevice(driver, "fp32", gpus, number) for number, driver in enumerate(self.drivers)]
        for gpu in self.gpus:
            gpu.start()
        found = [slots_of(gpu, 64, 4) for gpu in self.gpus]
        self._arenas = [arena for arena, _ in found]
        self.there = [[gpu.array(slot, (16,), np.float32) for slot in slots]
                      for gpu, (_, slots) in zip(self.gpus, found, strict=True)]  # fmt: skip
        self.here = [self.gpus[0].numbers(8).view(np.float32) for _ in range(4)]

    def fill(self, gpu: int, index: int, value: float, *waits: StreamEvent) -> StreamEvent:
        return self.gpus[gpu].launch(fill(TILES[0], value), [self.there[gpu][index]], None, waits)

    def passed(self, to: int, index: int, source: int, *waits: StreamEvent) -> StreamEvent:
        """Copy array `source` of the other GPU to array `index` of this one."""
        return self.gpus[to].receive(self.there[to][index], self.there[1 - to][source], waits, what=TILES[0])

    def read(self, gpu: int, index: int, *waits: StreamEvent) -> list[float]:
        out = np.empty(16, np.float32)
        event = self.gpus[gpu].download(out, self.there[gpu][index], waits)
        event.wait()
        assert event.error is None
        return out.tolist()

    def hold(self, gpu: int, stream: str = "compute") -> threading.Event:
        """Keep a stream busy until the event that is returned is set."""
        gate = threading.Event()
        handle = next(one.handle for one in self.gpus[gpu].streams() if one.name == f"{stream}:{gpu}")  # type: ignore[attr-defined]
        self.drivers[gpu].hold(gate, handle)
        return gate

    def record(self, *nodes: Node) -> Any:
        assert self.gpus[0].recorder is not None
        return self.gpus[0].recorder.record(nodes)

    def replay(self, graph: Any) -> StreamEvent:
        assert self.gpus[0].recorder is not None
        return self.gpus[0].recorder.replay(graph)

    def close(self) -> None:
        for gpu in self.gpus:
            gpu.close()


@pytest.fixture(params=range(2))
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    found = Pair(request.param)
    yield found
    found.close()


@pytest.fixture
def steady() -> Iterator[Pair]:
    found = Pair(None)
    yield found
    found.close()


def test_work_of_one_gpu_waits_for_work_of_another_without_the_host(pair: Pair) -> None:
    gate = pair.hold(0)
    written = pair.fill(0, 0, 3.0)
    there = pair.passed(1, 0, 0, written)
    doubled = pair.gpus[1].launch(copy(*TILES), pair.there[1][:2], None, (there,))
    back = pair.passed(0, 1, 1, doubled)
    pair.gpus[0].launch(fill(TILES[0], 7.0), [pair.there[0][0]], None, (), (there,))
    assert not back.done
    gate.set()
    assert pair.read(0, 1, back) == pair.read(1, 1, doubled) == [3.0] * 16
    assert pair.node.passed_nbytes == 128


def test_a_copy_between_gpus_runs_beside_the_computing_of_both(steady: Pair) -> None:
    steady.fill(0, 0, 3.0).wait()
    gates = [steady.hold(0), steady.hold(1)]
    steady.passed(1, 0, 0).wait()
    for gate in gates:
        gate.set()
    assert steady.read(1, 0) == [3.0] * 16


def test_every_gpu_reaches_the_memory_of_the_others() -> None:
    node, gpus = SoftNode(), Gpus(3)
    drivers = [SoftDriver(index=index, node=node) for index in (4, 0, 2)]
    for driver in drivers:
        gpus.add(driver)
    assert [sorted(driver.reached) for driver in drivers] == [[0, 2], [2, 4], [0, 4]]


def test_a_failure_on_one_gpu_fails_everything_that_lands_on_another_afterwards(pair: Pair) -> None:
    gate = pair.hold(1)
    before = pair.fill(0, 0, 3.0)
    before.wait()
    pair.drivers[1].streams[pair.gpus[1].streams()[0].handle].put(lambda: 1 / 0)  # type: ignore[attr-defined]
    failed = pair.fill(1, 0, 1.0)
    read = pair.passed(0, 0, 0, failed)
    gate.set()
    read.wait()
    assert before.error is None
    assert re.search("^the GPU failed at or before .*: (cuda:1: )?division by zero", str(read.error))
    assert isinstance(pair_failed(pair), DeviceError)


def pair_failed(pair: Pair) -> BaseException | None:
    """Return the error of work that needs nothing of the failed GPU."""
    later = pair.fill(0, 1, 1.0)
    later.wait()
    return later.error


def test_work_given_the_memory_of_another_gpu_fails(steady: Pair) -> None:
    wrong = steady.gpus[1].launch(fill(TILES[0], 1.0), [steady.there[0][0]], None, ())
    wrong.wait()
    assert isinstance(wrong.error, CudaError) and "GPU 1 was given memory of GPU 0" in str(wrong.error)


def up(pair: Pair, gpu: int, to: int, source: int, *after: int) -> Node:
    return Node(Kind.UPLOAD, TILES[0], (pair.there[gpu][to], pair.here[source]), None, after, gpu)


def down(pair: Pair, gpu: int, to: int, source: int, *after: int) -> Node:
    return Node(Kind.DOWNLOAD, TILES[0], (pair.here[to], pair.there[gpu][source]), None, after, gpu)


def passes(pair: Pair, gpu: int, to: int, source: int, *after: int) -> Node:
    return Node(Kind.PASS, TILES[0], (pair.there[gpu][to], pair.there[1 - gpu][source]), None, after, gpu)


def copied(pair: Pair, gpu: int, to: int, source: int, *after: int) -> Node:
    return Node(Kind.OPERATION, copy(*TILES), (pair.there[gpu][source], pair.there[gpu][to]), None, after, gpu)


def test_one_graph_has_the_work_of_both_gpus_in_the_order_that_it_names(pair: Pair) -> None:
    graph = pair.record(
        up(pair, 0, 0, 0), copied(pair, 0, 1, 0, 0), passes(pair, 1, 0, 1, 1), copied(pair, 1, 1, 0, 2),
        copied(pair, 0, 1, 2, 2), passes(pair, 0, 3, 1, 3), down(pair, 1, 1, 1, 3), down(pair, 0, 2, 3, 5),
    )  # fmt: skip
    for value in (1.0, 2.0, 3.0):
        pair.here[0][:] = value
        passed = pair.node.passed_nbytes
        pair.replay(graph).wait()
        assert pair.here[1].tolist() == pair.here[2].tolist() == [value] * 16
        assert pair.node.passed_nbytes - passed == 128
    assert pair.drivers[0].graphs == 3 and pair.drivers[1].graphs == 0


def test_computing_and_copies_of_each_way_and_gpu_wait_for_each_other_only_where_they_must(steady: Pair) -> None:
    lanes = [copied(steady, 0, 1, 0), up(steady, 0, 2, 0), down(steady, 0, 1, 3), passes(steady, 0, 3, 3)]
    lanes += [copied(steady, 1, 1, 0), up(steady, 1, 2, 2), down(steady, 1, 3, 2), passes(steady, 1, 3, 0)]
    assert [node.after for node in steady.record(*lanes).nodes] == [()] * 8


def test_a_graph_runs_behind_earlier_computing_of_every_gpu_and_before_later(pair: Pair) -> None:
    """It uses the scratch of each, as the computing on the GPU's own stream does."""
    graph = pair.record(copied(pair, 1, 1, 0), copied(pair, 0, 1, 0))
    gate = pair.hold(1)
    pair.fill(1, 0, 3.0)
    run = pair.replay(graph)
    pair.fill(1, 0, 9.0)
    later = pair.gpus[1].launch(copy(*TILES), pair.there[1][1:3], None, ())
    assert not run.done
    gate.set()
    later.wait()
    assert pair.read(1, 2) == [3.0] * 16


def test_work_of_another_gpu_that_gets_ready_during_recording_is_not_in_the_graph(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, wait = threading.Event(), pair.drivers[1].wait
    disk = pair.gpus[0].add_stream("disk", 1)
    disk.start()
    read = disk.enqueue((), gate.wait, ())
    beside = pair.fill(1, 1, 9.0, read)

    def let_go(stream: int, event: int) -> None:
        wait(stream, event)  # which takes the stream into the capture
        gate.set()
        read.wait()

    monkeypatch.setattr(pair.drivers[1], "wait", let_go)
    graph = pair.record(copied(pair, 0, 1, 0), Node(Kind.OPERATION, fill(TILES[0], 3.0), (pair.there[1][0],), None, (), 1))
    monkeypatch.undo()
    beside.wait()
    assert pair.read(1, 1) == [9.0] * 16
    pair.fill(1, 1, 0.0).wait()
    pair.replay(graph).wait()
    assert (pair.read(1, 0), pair.read(1, 1)) == ([3.0] * 16, [0.0] * 16)


def test_a_failure_of_a_graph_on_the_second_gpu_fails_the_graph(steady: Pair) -> None:
    def fails(on: Any, *arrays: Array) -> None:
        on.launch("fill_f32", (1,), 32, arrays[0], 1.0, 16)
        steady.drivers[1].streams[steady.gpus[1].streams()[0].handle].put(lambda: 1 / 0)  # type: ignore[attr-defined]

    steady.gpus[0].kernels["fails"] = fails  # the kernels of all
    operation = type(fill(TILES[0], 1.0))("fails", TILES[:1], "w")
    run = steady.replay(steady.record(Node(Kind.OPERATION, operation, (steady.there[1][0],), None, (), 1)))
    run.wait()
    assert "cuda:1: division by zero" in str(run.error)
    assert steady.drivers[0].error is None


def test_closing_leaves_no_stream_and_no_event_on_any_gpu() -> None:
    pair = Pair(1)
    graph = pair.record(copied(pair, 0, 1, 0), passes(pair, 1, 0, 1, 0), copied(pair, 1, 1, 0, 1))
    pair.replay(graph).wait()
    pair.close()
    for driver in pair.drivers:
        assert (driver.streams, driver.events) == ({}, {})


def opened_as(monkeypatch: pytest.MonkeyPatch, shape: Any) -> list[SoftDriver]:
    """Let engines open soft GPUs that `shape` changes; return them as they are opened."""
    opened, opens = list[SoftDriver](), opener(SoftDriver)

    def open_driver(name: str) -> SoftDriver:
        opened.append(opens(name))
        shape(opened[-1])
        return opened[-1]

    monkeypatch.setattr("asynctile.device.open_driver", open_driver)
    return opened


def test_gpus_of_two_kinds_are_refused_and_the_first_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def shape(driver: SoftDriver) -> None:
        driver.title, driver.capability = (("H100", (9, 0)), ("A100", (8, 0)))[driver.index]

    opened = opened_as(monkeypatch, shape)
    with pytest.raises(DeviceError) as caught:
        Engine("cuda:0-1")
    assert str(caught.value) == (
        "cuda:0 and cuda:1 are unlike GPUs, H100 of compute capability 9.0 and A100 of compute capability 8.0: name GPUs of "
        "one kind")  # fmt: skip
    assert [driver.streams for driver in opened] == [{}, {}]


async def test_gpus_with_unlike_libraries_are_refused_as_the_engine_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    def shape(driver: SoftDriver) -> None:
        words = "cuBLASLt, with no algorithm for 1 of 2 shapes", "not used: cuBLASLt gives wrong results"
        driver.epilogues = words[driver.index]

    opened = opened_as(monkeypatch, shape)
    with pytest.raises(DeviceError, match=r"cuda:1 and cuda:0 compute with unlike libraries, 'not used: .*' and 'cuBLASLt'"):
        async with Engine("cuda:0-1"):
            pass
    assert [driver.streams for driver in opened] == [{}, {}]


async def test_streams_carry_the_number_of_their_gpu_and_one_of_them_does_the_hosts_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened_as(monkeypatch, lambda driver: None)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    engine = Engine("cuda:2,cuda:0")
    assert engine.device == "cuda:2,cuda:0"
    names = [stream.name for device in life_of(engine).devices for stream in device.streams()]
    lanes = ("compute", "upload", "download", "peer", "unpin", "host")
    assert names == [f"{lane}:{number}" for number in (0, 1) for lane in lanes]
    await engine.aclose()
