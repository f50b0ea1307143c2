"""Attention by cuDNN, with the frontend of tests/cuda/cudnn.py: the calls it gets, when it is used, and the trial before."""

import re
from contextlib import ExitStack

import numpy as np
import pytest

from asynctile.device import CudaDevice, cudnn_trial
from asynctile.device.cudnn import Cudnn
from asynctile.device.cudnn_trial import try_cudnn, wrong_attention
from asynctile.device.probe import fetch, place, settle
from asynctile.errors import DeviceError
from asynctile.kernels.bf16 import from_bf16, to_bf16
from asynctile.program.operation import Operation
from asynctile.program.precision import BF16
from asynctile.storage.tile import Tile
from tests.cuda.build import missing
from tests.cuda.context import view
from tests.cuda.cudnn import NotSupported
from tests.cuda.driver import SoftDriver
from tests.kernels import reference
from tests.laws import law

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def driver():
    made = SoftDriver(attends=True)
    made.stream = made.new_stream()
    yield made
    made.destroy_stream(made.stream)


@pytest.fixture
def cudnn(driver):
    made = Cudnn(driver.library, driver.stream, driver.malloc(1 << 20), 1 << 20)
    yield made
    made.close()


def tiles(driver, stack, seqs, tokens, heads, hs, dtype=BF16):
    """Return q, k, v, out, dout, stats, dq, dk, dv as arrays of the host and of the device; inputs random, results poisoned."""
    rows = seqs * tokens
    values = [reference.random(seed, rows, heads * hs) for seed in range(9)]
    values = [to_bf16(x) for x in values] if dtype == BF16 else values
    for index in (3, 6, 7, 8):
        values[index][...] = 0xFFFF if dtype == BF16 else np.nan
    values[5] = np.full((2 * heads, rows), np.nan, np.float32)
    arrays = [place(value, driver, driver.stream, stack) for value in values]
    stack.callback(lambda: [settle(driver, stream) for stream in driver.streams])
    return values, arrays


@pytest.mark.parametrize(("seqs", "tokens", "heads", "hs"), [(1, 130, 2, 64), (5, 33, 3, 8), (3, 256, 6, 128)])
def test_tiles_stats_and_gradients_lie_where_asynctile_wants_them(driver, cudnn, seqs, tokens, heads, hs):
    with ExitStack() as stack:
        values, (q, k, v, out, dout, stats, *gradients) = tiles(driver, stack, seqs, tokens, heads, hs)
        assert cudnn.attend(q, k, v, out, stats, seqs, heads)
        assert cudnn.attend_backward(q, k, v, out, dout, stats, *gradients, seqs, heads)
        for value, array in zip(values, (q, k, v, out, dout, stats, *gradients), strict=True):
            fetch(value, array, driver, driver.stream)
    wide = [from_bf16(x) if x.dtype == BF16 else x for x in values]
    expected, lse = reference.attention(*wide[:3], seqs, heads)
    assert reference.error(wide[3], expected) < 2.0**-7
    assert reference.error(wide[5][:heads], lse) < 1e-6
    for found, wanted in zip(wide[6:], reference.attention_gradients(*wide[:3], wide[4], seqs, heads), strict=True):
        assert reference.error(found, wanted) < 2.0**-6


def test_heads_too_large_for_the_workspace_together_run_in_groups_of_one_size(driver, cudnn):
    with ExitStack() as stack:
        _, (q, k, v, out, dout, stats, *gradients) = tiles(driver, stack, 3, 256, 6, 8)  # 384 KiB a head of 1 MiB
        assert cudnn.attend_backward(q, k, v, out, dout, stats, *gradients, 3, 6)
        assert len(driver.library.executed) == 3 and len(set(driver.library.executed)) == 1
        assert cudnn.attend(q, k, v, out, stats, 3, 6)
        assert len(driver.library.executed) == 4


def test_a_plan_is_made_once_for_a_shape(driver, cudnn, monkeypatch):
    with ExitStack() as stack:
        _, (q, k, v, out, _, stats, *_) = tiles(driver, stack, 2, 16, 2, 8)
        assert cudnn.attend(q, k, v, out, stats, 2, 2)
        monkeypatch.setattr(driver.library, "pygraph", None)
        assert cudnn.attend(k, q, out, v, stats, 2, 2)
        assert not cudnn.attend(q, k, v, out, stats, 4, 2)
        assert cudnn.words == "cuDNN 9.16, not for all shapes (TypeError: 'NoneType' object is not callable)"


@pytest.mark.parametrize(
    ("shape", "dtype", "forward"),
    [((2, 16, 2, 12), BF16, False), ((2, 16, 1, 136), BF16, False), ((2, 16, 2, 8), np.dtype(np.float32), False),
     ((8, 1, 2, 8), BF16, True), ((1, 1024, 1, 8), BF16, True)],
    ids=["columns of no tensor core", "too many columns", "float32", "refused by the frontend", "beyond the workspace"],
)  # fmt: skip
def test_work_that_cudnn_does_not_support_is_left_alone(driver, cudnn, shape, dtype, forward):
    seqs, _, heads, _ = shape
    with ExitStack() as stack:
        _, (q, k, v, out, dout, stats, *gradients) = tiles(driver, stack, *shape, dtype)
        assert cudnn.attend(q, k, v, out, stats, seqs, heads) == forward
        driver.library.executed.clear()
        for _ in range(2):
            assert not cudnn.attend_backward(q, k, v, out, dout, stats, *gradients, seqs, heads)
        assert not driver.library.executed


def test_keys_with_fewer_heads_than_queries_are_left_alone(driver, cudnn):
    with ExitStack() as stack:
        _, (q, _, _, out, dout, stats, dq, *_) = tiles(driver, stack, 2, 16, 4, 8)
        _, (k, v, *_, dk, dv) = tiles(driver, stack, 2, 16, 2, 8)
        assert not cudnn.attend(q, k, v, out, stats, 2, 4)
        assert not cudnn.attend_backward(q, k, v, out, dout, stats, dq, dk, dv, 2, 4)
        assert not driver.library.executed and not cudnn.refused


@pytest.mark.parametrize(
    ("version", "tokens", "done"), [(91300, 130, False), (91500, 130, False), (91500, 128, True), (91501, 130, True)]
)
def test_gradients_that_would_read_the_frontends_memory_in_a_graph_are_left_alone(driver, cudnn, version, tokens, done):
    driver.library.version = version
    with ExitStack() as stack:
        _, (q, k, v, out, dout, stats, *gradients) = tiles(driver, stack, 2, tokens, 2, 8)
        assert cudnn.attend(q, k, v, out, stats, 2, 2)
        assert cudnn.attend_backward(q, k, v, out, dout, stats, *gradients, 2, 2) == done
    assert ("gradients of 130 tokens" in cudnn.words) == (not done)


def test_the_trial_has_gradients_to_try_with_every_version(driver, monkeypatch):
    driver.library.version = 91500
    done, true = [], Cudnn.attend_backward
    monkeypatch.setattr(Cudnn, "attend_backward", lambda *args: done.append(true(*args)) or done[-1])
    made, words = try_cudnn(driver, driver.stream, lambda: driver.library, 1 << 20)
    made.close()
    assert words.startswith("cuDNN 9.15, not for all shapes (gradients of ")
    assert any(done) and not all(done)


def test_a_plan_that_fails_for_lack_of_memory_raises_and_falls_back_to_nothing(driver, cudnn, monkeypatch):
    def refuse(inputs, outputs):
        raise NotSupported("no plan could be built:\n  [0] eng9: cuLibraryLoadData: CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER")

    monkeypatch.setattr(driver.library, "validate", refuse)
    with ExitStack() as stack:
        _, (q, k, v, out, _, stats, *_) = tiles(driver, stack, 2, 16, 2, 8)
        with pytest.raises(DeviceError, match=r"failed while it prepared attention .*EXECUTION_FAILED"):
            cudnn.attend(q, k, v, out, stats, 2, 2)


class Changed:
    """cuDNN with its results changed after `attend` or `attend_backward`."""

    def __init__(self, driver, cudnn, change, kind):
        self._driver, self._cudnn, self._change, self._kind = driver, cudnn, change, kind

    def attend(self, *operands):
        return self._run("attend", operands)

    def attend_backward(self, *operands):
        return self._run("attend_backward", operands)

    def _run(self, kind, operands):
        done = getattr(self._cudnn, kind)(*operands)
        if kind == self._kind:
            self._driver.streams[self._driver.stream].put(lambda: self._change(*map(view, operands[:-2])))
        return done


def spoil(index, row):
    def change(*views):
        views[index][row, -1] = 0xFFFF if views[index].dtype == BF16 else np.nan

    return change


@pytest.mark.parametrize(
    ("kind", "index", "row"),
    [("attend", 3, -1), ("attend_backward", 8, 5),
     law("attend", 4, 0), law("attend_backward", 6, -1), law("attend_backward", 7, 0)],
)
def test_the_trial_finds_one_element_that_is_not_written(driver, cudnn, kind, index, row):
    found = wrong_attention(Changed(driver, cudnn, spoil(index, row), kind), driver, driver.stream)
    assert found == f"wrong results ({kind}, 1 x 320 tokens, 2 heads of 64)"


def test_the_trial_finds_results_that_differ_from_run_to_run(driver, cudnn):
    random = np.random.default_rng()

    def shake(*views):
        views[6][3, 3] ^= random.integers(2, dtype=np.uint16)

    changed = Changed(driver, cudnn, shake, "attend_backward")
    found = (wrong_attention(changed, driver, driver.stream) for _ in range(9))
    assert any("differ from run to run (attend_backward" in str(words) for words in found)


def test_the_trial_finds_statistics_in_another_base(driver, cudnn):
    def in_powers_of_two(q, k, v, out, stats):
        stats /= np.float32(np.log(2))

    found = wrong_attention(Changed(driver, cudnn, in_powers_of_two, "attend"), driver, driver.stream)
    assert "wrong results (attend," in found


def test_a_library_that_is_not_used_says_why_and_leaves_no_memory(driver, monkeypatch):
    def words():
        used, said = try_cudnn(driver, driver.stream, lambda: driver.library, 1 << 20)
        assert used is None and driver.memory()[0] == driver.memory()[1]
        return said

    monkeypatch.setattr(Cudnn, "attend", lambda *args: False)
    monkeypatch.setattr(Cudnn, "attend_backward", lambda *args: False)
    assert words() == "not used: cuDNN 9.16 gives nothing"
    monkeypatch.undo()
    monkeypatch.setattr(driver.library, "pygraph", lambda **options: 1 / 0)
    assert words() == "not used: cuDNN 9.16 gives nothing, not for all shapes (ZeroDivisionError: division by zero)"
    monkeypatch.undo()
    monkeypatch.setattr(Cudnn, "attend", lambda *args: 1 / 0)
    assert words().startswith("not used: cuDNN 9.16 gives ZeroDivisionError: division by zero (")
    monkeypatch.setattr(driver.library, "create_handle", lambda: 1 / 0)
    assert words() == "not used: ZeroDivisionError: division by zero"


def test_without_the_frontend_the_message_says_what_to_install(driver):
    try:
        import cudnn  # noqa: F401
    except ImportError:
        used, said = try_cudnn(driver, driver.stream)
        assert used is None
        assert re.fullmatch(r"not used: cuDNN's frontend does not load \(No module named 'cudnn'\); pip install .*", said)
    else:
        pytest.skip("the frontend is installed")


def test_launchers_take_cudnn_for_whole_sequences_only(driver, monkeypatch):
    monkeypatch.setattr(cudnn_trial, "CASES", cudnn_trial.CASES[2:3])
    ran, refused, attend, attend_backward = [], [], driver.attend, driver.attend_backward
    driver.attend = lambda *args: not refused and attend(*args)
    driver.attend_backward = lambda *args: not refused and attend_backward(*args)
    device = CudaDevice(driver, "bf16")
    device.start()
    driver.launch = lambda kernel, *args: ran.append(kernel)

    def run(kernel, arrays, *params):
        operands = tuple(Tile(f"t{index}", array.shape, array.dtype) for index, array in enumerate(arrays))
        event = device.launch(Operation(kernel, operands, "u" * len(operands), params), arrays, None, ())
        event.wait()
        assert event.error is None

    with ExitStack() as stack:
        _, (q, k, v, out, dout, stats, *gradients) = tiles(driver, stack, 2, 16, 2, 8)
        delta = place(np.zeros((2, 32), np.float32), driver, driver.stream, stack)
        forward, backward = (q, k, v, out, stats), (q, k, v, out, dout, stats, delta, *gradients)
        run("attention", forward, 2, 2, True, True)
        run("attention_backward_whole", backward, 2, 2)
        assert not ran
        run("attention", forward, 1, 2, True, False)
        run("attention", forward, 1, 2, False, True)
        assert ran == ["attention_mma_32"] * 2
        refused.append(True)
        run("attention", forward, 2, 2, True, True)
        run("attention_backward_whole", backward, 2, 2)
        assert [name.partition("_mma")[0] for name in ran[2:]] == [
            "attention", "attention_delta_bf16", "attention_backward_keys", "attention_backward_queries",
        ]  # fmt: skip
    device.close()


def test_other_precisions_do_not_try_cudnn(driver):
    device = CudaDevice(driver, "tf32")
    device.start()
    assert driver.attention == "not tried yet"
    device.close()
