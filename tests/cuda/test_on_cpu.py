"""CUDA's rules on the CPU: a mistake that a GPU would report, or silently get wrong, is an error or shows in another order."""

from pathlib import Path

import numpy as np
import pytest

from asynctile.kernels.cuda import Array, pack, parts
from tests.cuda.build import build, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
ORDERS = ("forward", "reversed", 1, 2)


@pytest.fixture(scope="module")
def kernels():
    return build([*(path for path in parts() if path.suffix == ".cuh"), Path(__file__).parent / "mistakes.cu"])


def run(kernels, kernel, *args, order="forward", grid=1, block=32, shared=0):
    """Run a kernel on NumPy arrays and numbers."""
    packed = pack(Array(x.ctypes.data, x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in args)
    kernels.order(order)
    kernels.run(kernel, (grid,), (block,), shared, packed.address)


def aligned(count):
    room = np.full(count + 4, np.nan, np.float32)
    return room[-(room.ctypes.data // 4) % 4 :][:count]


@pytest.mark.parametrize("order", ORDERS)
def test_mistakes_are_errors(kernels, order):
    y = aligned(256)
    with pytest.raises(RuntimeError, match=r"misaligned, grid \(1,\), block \(32,\): block \(0, 0, 0\).*misaligned access"):
        run(kernels, "misaligned", aligned(8), y, order=order)
    with pytest.raises(RuntimeError, match="index 4 beyond an array"):
        run(kernels, "beyond_an_array", y, 4, order=order)
    with pytest.raises(RuntimeError, match=r"lane 7, which has ended|for ever"):
        run(kernels, "lanes_missing", y, 7, order=order)
    with pytest.raises(RuntimeError, match="waits in a warp operation for ever"):
        run(kernels, "waits_for_ever", y, 7, order=order)
    run(kernels, "mirror", y, 1, order=order, block=256)  # and the next kernel runs as usual
    np.testing.assert_array_equal(y, np.arange(256)[::-1])


def test_a_missing_barrier_shows_in_some_order(kernels):
    outcomes = []
    for order in ORDERS:
        y = aligned(256)
        run(kernels, "mirror", y, 0, order=order, block=256)
        outcomes.append(y.tobytes())
    assert len(set(outcomes)) > 1


def test_shared_memory_starts_as_nan_in_each_block(kernels):
    y = np.zeros(6, np.float32)
    run(kernels, "not_initialised", y, grid=3, block=1, shared=16)
    assert np.isnan(y).all()


@pytest.mark.parametrize("order", ORDERS)
def test_warp_operations(kernels, order):
    y = aligned(64 * 8)
    run(kernels, "warp_words", y, order=order, block=64)
    thread, found = np.arange(64), y.reshape(64, 8)
    lane, warp = thread % 32, thread // 32 * 32
    tens = np.bincount(lane[:32] // 10)
    expected = [
        thread ^ 3, np.where(lane < 29, thread + 3, thread), np.where(lane >= 3, thread - 3, thread), warp + 3,
        np.full(64, 5), tens[lane // 10], thread, np.where(lane < 6, thread ^ 1, np.nan),
    ]  # fmt: skip
    np.testing.assert_array_equal(found, np.stack(expected, axis=1))


@pytest.mark.parametrize("order", ORDERS)
def test_sums_of_a_block_can_follow_each_other(kernels, order):
    y = aligned(128)
    run(kernels, "three_sums", y, order=order, block=128)
    assert (y == 6 * np.arange(128).sum() + 127_000).all()


@pytest.mark.parametrize("launch", [
    {"grid": 0}, {"block": 0}, {"block": 1025}, {"shared": (227 << 10) + 1}, {"kernel": "unknown"},
])  # fmt: skip
def test_launches_that_a_driver_refuses_are_refused(kernels, launch):
    with pytest.raises(ValueError, match=r"no GPU launches|no kernel unknown"):
        run(kernels, **{"kernel": "mirror", **launch})


def test_a_source_that_cannot_be_compiled_is_an_error(tmp_path):
    source = tmp_path / "wrong.cu"
    source.write_text("int x = nowhere;")
    with pytest.raises(RuntimeError, match=r"wrong.cu:1:9: error: .*nowhere"):
        build([source])
