"""The driver on the CPU keeps CUDA's rules of capture: the content of a graph, refusals, and order only by edges.

The users of a driver test that it does what a device asks of it (tests/device/test_cuda.py). Long because the same three
streams show each rule and each way to break it.
"""

import ctypes
import random
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.kernels.cuda import Array, pack
from asynctile.program.precision import BF16
from tests.cuda.build import missing
from tests.cuda.driver import SoftDriver
from tests.cuda.graph import CudaError, Node, SoftGraph
from tests.settle import HANG_S

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


class Streams:
    """Three streams of a driver on the CPU, and the words that their work writes to `ran`."""

    def __init__(self, **options):
        self.driver = SoftDriver(**options)
        self.all = self.compute, self.up, self.down = [self.driver.new_stream() for _ in range(3)]
        self.ran = []

    def work(self, stream, word):
        self.driver.streams[stream].put(lambda: self.ran.append(word))

    def recorded(self, stream):
        event = self.driver.new_event()
        self.driver.record(event, stream)
        return event

    def order(self, stream, behind):
        """Make later work on `stream` wait for all work of another stream."""
        self.driver.wait(stream, self.recorded(behind))

    def settle(self):
        for stream in self.all:
            self.driver.synchronize(self.recorded(stream))

    def launch(self, graph, stream=None):
        """Return the words that a launch writes."""
        self.settle()
        self.ran.clear()
        self.driver.launch_graph(graph, stream or self.compute)
        self.settle()
        return "".join(self.ran)


@pytest.fixture
def make():
    made = []

    def streams(**options):
        made.append(Streams(**options))
        return made[-1]

    yield streams
    for one in made:
        for stream in one.all:
            one.driver.destroy_stream(stream)


@pytest.fixture
def streams(make):
    return make()


def three_branches(streams, *, all_edges=True):
    """Capture a graph: "a" and "d" on compute, "b" above, "c" below; a < b < c < d, or without b < c."""
    streams.driver.begin_capture(streams.compute)
    streams.work(streams.compute, "a")
    streams.order(streams.up, streams.compute)
    streams.work(streams.up, "b")
    streams.order(streams.down, streams.up if all_edges else streams.compute)
    streams.work(streams.down, "c")
    streams.order(streams.compute, streams.up)
    streams.order(streams.compute, streams.down)
    streams.work(streams.compute, "d")
    return streams.driver.end_capture(streams.compute)


def test_work_of_streams_that_wait_for_a_captured_one_is_captured_with_its_edges_and_not_run(streams):
    graph = three_branches(streams)
    streams.settle()
    assert not streams.ran
    assert [node.after for node in graph.nodes] == [(), (0,), (1,), (0, 1, 2)]
    assert streams.launch(graph) == streams.launch(graph, streams.down) == "abcd"
    assert streams.driver.graphs == 2


def test_with_a_seed_a_missing_edge_shows_and_an_existing_edge_holds(make):
    streams = make(seed=1)
    whole, broken = three_branches(streams), three_branches(streams, all_edges=False)
    assert {streams.launch(whole) for _ in range(20)} == {"abcd"}
    assert {streams.launch(broken) for _ in range(20)} == {"abcd", "acbd"}


@st.composite
def graphs(draw):
    """Draw nodes on three branches, each after the last of its branch and a few earlier ones."""
    nodes = []
    for index in range(draw(st.integers(2, 12))):
        branch = draw(st.integers(0, 2))
        last = [before for before in range(index) if nodes[before].branch == branch][-1:]
        others = draw(st.lists(st.integers(0, index - 1), max_size=2)) if index else []
        nodes.append(Node(lambda: None, branch, tuple(sorted({*last, *others}))))
    return SoftGraph(tuple(nodes))


@given(graph=graphs(), number=st.integers(0, 1 << 30))
def test_every_order_of_a_graph_keeps_its_edges_and_unordered_nodes_soon_swap(graph, number):
    seed = random.Random(number)
    orders = [graph.order(seed) for _ in range(100)]
    behind = []
    for node in graph.nodes:
        behind.append({one for before in node.after for one in (before, *behind[before])})
    for order in orders:
        place = {index: at for at, index in enumerate(order)}
        assert len(place) == len(graph.nodes)
        assert all(place[before] < place[index] for index in place for before in graph.nodes[index].after)
    free = {(one, other) for other in range(len(behind)) for one in range(other) if one not in behind[other]}
    swapped = {(one, other) for one, other in free for order in orders if order.index(other) < order.index(one)}
    assert free == swapped
    assert graph.order(None) == list(range(len(graph.nodes)))


def test_work_enqueued_before_or_after_a_capture_is_not_in_the_graph(streams):
    gate = threading.Event()
    streams.driver.hold(gate, streams.up)
    streams.work(streams.up, "x")
    graph = three_branches(streams)
    streams.work(streams.up, "y")
    gate.set()
    streams.settle()
    assert "".join(streams.ran) == "xy"
    assert streams.launch(graph) == "abcd"


def test_an_event_can_be_recorded_again_within_a_capture_and_after_it(streams):
    driver, event, graphs = streams.driver, streams.driver.new_event(), []
    for _ in range(2):
        driver.begin_capture(streams.compute)
        for source, target in ((streams.compute, streams.up), (streams.up, streams.down), (streams.down, streams.compute)):
            streams.work(source, "n")
            driver.record(event, source)
            driver.wait(target, event)
            driver.record(event, streams.compute)  # and earlier waits keep their place
        graphs.append(driver.end_capture(streams.compute))
        driver.record(event, streams.compute)
        driver.synchronize(event)
    assert [[node.after for node in graph.nodes] for graph in graphs] == [[(), (0,), (1,)]] * 2


def test_kernels_products_attention_and_copies_are_nodes_with_the_arguments_of_their_capture(make):
    streams = make(attends=True)
    driver, stream = streams.driver, streams.compute
    driver.open_gemm(stream, tf32=False)
    driver.open_attention(stream)
    dtype = np.dtype(np.float32)
    ones, out = np.ones((4, 4), np.float32), np.zeros((4, 4, 4), np.float32)
    places = [Array(value.ctypes.data, (4, 4), dtype) for value in (ones, *out)]
    heads = np.zeros((4, 8, 8), BF16)
    stats = np.zeros((2, 8), np.float32)
    operands = [*(Array(one.ctypes.data, (8, 8), heads.dtype) for one in heads), Array(stats.ctypes.data, (2, 8), dtype)]
    driver.attend(*operands, 1, 1)
    streams.settle()
    calls, launches = driver.library.calls, driver.launches
    driver.begin_capture(stream)
    packed = pack([places[1], 3.0, 16])
    driver.launch("fill_f32", (1,), 256, 0, packed.address, stream)
    ctypes.memset(packed.address, 0, 3 * 16)
    driver.copy(places[2].ptr, places[1].ptr, 64, stream)
    driver.gemm(places[2], places[2], places[3], False, False, False)
    assert driver.gemm_onto(places[2], places[0], places[4], False, False, places[1], None)
    assert driver.attend(*operands, 1, 1)
    graph = driver.end_capture(stream)
    assert [node.after for node in graph.nodes] == [(), (0,), (1,), (2,), (3,)]
    streams.settle()
    assert not out.any() and driver.library.calls == calls and driver.launches == launches + 3
    for runs in (1, 2):
        out[...] = 0
        streams.launch(graph)
        assert [one.max() for one in out] == [one.min() for one in out] == [3, 3, 36, 15]
        assert driver.library.calls == calls + runs and driver.launches == launches + 3


def unjoined_work(streams):
    streams.order(streams.up, streams.compute)
    streams.work(streams.up, "b")


def unjoined_fork(streams):
    streams.order(streams.up, streams.compute)


def work_behind_a_join(streams):
    streams.order(streams.up, streams.compute)
    streams.order(streams.compute, streams.up)
    streams.work(streams.up, "b")


def joined_by_another_that_is_not(streams):
    streams.order(streams.up, streams.compute)
    streams.order(streams.down, streams.up)


@pytest.mark.parametrize("forget", [unjoined_work, unjoined_fork, work_behind_a_join, joined_by_another_that_is_not])
def test_an_unjoined_branch_fails_the_end_and_leaves_no_stream_captured(streams, forget):
    streams.driver.begin_capture(streams.compute)
    streams.work(streams.compute, "a")
    forget(streams)
    with pytest.raises(CudaError, match="cudaErrorStreamCaptureUnjoined: capturing stream has unjoined work") as refused:
        streams.driver.end_capture(streams.compute)
    assert refused.value.status == 904
    for stream in streams.all:
        streams.work(stream, "z")
    streams.settle()
    assert streams.ran == ["z"] * 3
    assert streams.launch(three_branches(streams)) == "abcd"


def wait_for_an_event_from_outside(streams):
    streams.driver.wait(streams.compute, streams.outside)


def wait_for_an_event_that_was_never_recorded(streams):
    streams.driver.wait(streams.compute, streams.driver.new_event())


def wait_for_an_event_of_another_graph(streams):
    streams.driver.wait(streams.compute, streams.captured)


def synchronize_with_the_capture(streams):
    streams.driver.synchronize(streams.recorded(streams.compute))


def synchronize_with_a_branch(streams):
    streams.order(streams.up, streams.compute)
    streams.driver.synchronize(streams.recorded(streams.up))


def read_its_time(streams):
    streams.driver.elapsed_s(streams.outside, streams.recorded(streams.compute))


def merge_two(streams):
    streams.driver.begin_capture(streams.down)
    try:
        streams.order(streams.compute, streams.down)
    finally:
        streams.driver.end_capture(streams.down)


def end_it_elsewhere(streams):
    streams.order(streams.up, streams.compute)
    streams.driver.end_capture(streams.up)


@pytest.mark.parametrize(
    ("mistake", "name"),
    [
        (wait_for_an_event_from_outside, "cudaErrorStreamCaptureIsolation"),
        (wait_for_an_event_that_was_never_recorded, "cudaErrorStreamCaptureIsolation"),
        (wait_for_an_event_of_another_graph, "cudaErrorStreamCaptureMerge"),
        (synchronize_with_the_capture, "cudaErrorCapturedEvent"), (synchronize_with_a_branch, "cudaErrorCapturedEvent"),
        (read_its_time, "cudaErrorCapturedEvent"), (merge_two, "cudaErrorStreamCaptureMerge"),
        (end_it_elsewhere, "cudaErrorStreamCaptureUnmatched"),
    ],
)  # fmt: skip
def test_a_mistake_during_capture_is_refused_and_spoils_the_capture(streams, mistake, name):
    driver = streams.driver
    streams.outside = streams.recorded(streams.up)
    streams.driver.begin_capture(streams.compute)
    streams.captured = streams.recorded(streams.compute)
    streams.driver.end_capture(streams.compute)
    driver.begin_capture(streams.compute)
    streams.work(streams.compute, "a")
    with pytest.raises(CudaError, match=f"^{name}: "):
        mistake(streams)
    for more in (
        lambda: streams.work(streams.compute, "b"), lambda: streams.recorded(streams.compute),
        lambda: driver.end_capture(streams.compute),
    ):  # fmt: skip
        with pytest.raises(CudaError, match=r"^cudaErrorStreamCaptureInvalidated: "):
            more()
    streams.settle()
    assert not streams.ran
    assert streams.launch(three_branches(streams)) == "abcd"


def test_an_event_of_a_graph_means_nothing_outside_until_it_is_recorded_there(streams):
    driver = streams.driver
    driver.begin_capture(streams.compute)
    event = streams.recorded(streams.compute)
    driver.end_capture(streams.compute)
    for use in (lambda: driver.wait(streams.up, event), lambda: driver.synchronize(event)):
        with pytest.raises(CudaError, match=r"^cudaErrorCapturedEvent: "):
            use()
    driver.record(event, streams.compute)
    driver.wait(streams.up, event)
    driver.synchronize(event)


def test_a_destroyed_graph_runs_to_its_end_and_cannot_be_launched_again(streams):
    graph, gate = three_branches(streams), threading.Event()
    streams.driver.hold(gate, streams.compute)
    streams.driver.launch_graph(graph, streams.compute)
    streams.driver.destroy_graph(graph)
    gate.set()
    streams.settle()
    assert "".join(streams.ran) == "abcd"
    for use in (lambda: streams.driver.launch_graph(graph, streams.compute), lambda: streams.driver.destroy_graph(graph)):
        with pytest.raises(CudaError, match="destroyed"):
            use()
    assert streams.driver.graphs == 1


def test_a_graph_launched_while_it_runs_follows_itself(streams):
    driver, first, both = streams.driver, threading.Event(), threading.Event()

    def linger():
        """Give the second run the time to begin."""
        if first.is_set():
            both.set()
        first.set()
        both.wait(0.05)

    driver.begin_capture(streams.compute)
    streams.work(streams.compute, "a")
    driver.streams[streams.compute].put(linger)
    streams.work(streams.compute, "b")
    graph = driver.end_capture(streams.compute)
    driver.launch_graph(graph, streams.compute)
    assert first.wait(HANG_S)
    driver.launch_graph(graph, streams.up)
    streams.settle()
    assert "".join(streams.ran) == "abab"


def test_a_failure_in_a_graph_ends_the_graph_and_fails_every_wait(streams):
    driver = streams.driver
    driver.begin_capture(streams.compute)
    driver.streams[streams.compute].put(lambda: 1 / 0)
    streams.work(streams.compute, "a")
    graph = driver.end_capture(streams.compute)
    driver.launch_graph(graph, streams.compute)
    with pytest.raises(ZeroDivisionError):
        streams.settle()
    driver.error = None
    streams.settle()
    assert not streams.ran
