"""The instructions of mma.cuh, as the CPU's stand-in has them, against tables of the PTX ISA; attention in other thread orders.

The tables are written here once more as in the documentation (sections on matrix fragments for mma.m16n8k16 and on ldmatrix),
from a lane and an element's place to row and column. All numbers are small integers, so that sums are exact.
"""

import shutil

import numpy as np
import pytest

from asynctile.kernels.bf16 import from_bf16, to_bf16
from asynctile.kernels.cuda import Array, parts
from tests.cuda.build import build, library, missing
from tests.cuda.context import SoftContext
from tests.cuda.machine import SoftMachine
from tests.kernels.test_attention import backward, forward
from tests.kernels.test_attention_packed import packed_backward, packed_forward, positions_of
from tests.kernels.values import DTYPES, poison, random

SOURCE = """
extern "C" __global__ void try_mma(const unsigned *a, const unsigned *b, float *d) {
    float acc[4];
    for (int i = 0; i < 4; i++) acc[i] = d[threadIdx.x * 4 + i];
    unsigned left[4];
    for (int i = 0; i < 4; i++) left[i] = a[threadIdx.x * 4 + i];
    mma_16x8x16(acc, left, b[threadIdx.x * 2], b[threadIdx.x * 2 + 1]);
    for (int i = 0; i < 4; i++) d[threadIdx.x * 4 + i] = acc[i];
}

extern "C" __global__ void try_load_matrices(const bf16 *rows, const int *order, unsigned *to, int transposed) {
    DYNAMIC_SHARED(bf16, shared);
    for (int i = 0; i < 8; i++) shared[threadIdx.x * 8 + i] = rows[threadIdx.x * 8 + i];
    __syncwarp();
    unsigned found[4];
    if (transposed) load_matrices_transposed(found, shared + order[threadIdx.x] * 8);
    else load_matrices(found, shared + order[threadIdx.x] * 8);
    for (int i = 0; i < 4; i++) to[threadIdx.x * 4 + i] = found[i];
}

extern "C" __global__ void try_copies(const float *from, int there, int wait, float *to) {
    DYNAMIC_SHARED(float, shared);
    copy_16_bytes(shared + threadIdx.x * 4, from + threadIdx.x * 4, threadIdx.x < there);
    copy_4_bytes(shared + 128 + threadIdx.x, from + threadIdx.x, threadIdx.x < there);
    if (wait) wait_for_copies();
    __syncthreads();
    for (int i = 0; i < 4; i++) to[i * 32 + threadIdx.x] = shared[i * 32 + (threadIdx.x + 1) % 32];
    to[128 + threadIdx.x] = shared[128 + threadIdx.x];
    __syncthreads();
    wait_for_copies();
}
"""


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """A function that runs a kernel of SOURCE in one warp: tried(kernel, *arguments)."""
    if not shutil.which("g++"):
        pytest.skip("there is no g++ to compile CUDA kernels for the CPU")
    path = tmp_path_factory.mktemp("kernels") / "try.cu"
    path.write_text(SOURCE)
    headers = [part for part in parts() if part.name in ("common.cuh", "mma.cuh")]
    context = SoftContext(build([*headers, path]))

    def run(kernel, *args, order="forward"):
        context.library.order(order)
        places = [Array(arg.ctypes.data, arg.shape, arg.dtype) if isinstance(arg, np.ndarray) else arg for arg in args]
        context.launch(kernel, 1, 32, *places, shared=1024)

    return run


def whole(seed, *shape):
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def paired(values):
    """Return registers of two bf16 each, the first in the low half."""
    halves = to_bf16(values.astype(np.float32)).astype(np.uint32)
    return halves[..., ::2] | halves[..., 1::2] << 16


LANE = np.arange(32)[:, None]
GROUP, IN_GROUP = LANE // 4, LANE % 4


def test_mma_has_the_layout_of_the_ptx_isa(tried):
    a, b, c = whole(1, 16, 16), whole(2, 16, 8), whole(3, 16, 8)
    i = np.arange(8)[None]
    low = (i < 2) | ((i >= 4) & (i < 6))
    fragments_a = a[np.where(low, GROUP, GROUP + 8), IN_GROUP * 2 + (i & 1) + np.where(i < 4, 0, 8)]
    i = np.arange(4)[None]
    fragments_b = b[IN_GROUP * 2 + (i & 1) + np.where(i < 2, 0, 8), GROUP + 0 * i]
    rows, columns = np.where(i < 2, GROUP, GROUP + 8), IN_GROUP * 2 + (i & 1)
    d = np.ascontiguousarray(c[rows, columns])
    tried("try_mma", paired(fragments_a), paired(fragments_b), d)
    np.testing.assert_array_equal(d, (a @ b + c)[rows, columns])


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_has_the_layout_of_the_ptx_isa(tried, transposed):
    rows = np.arange(256, dtype=np.uint16).reshape(32, 8)
    order = np.random.default_rng(1).permutation(32).astype(np.int32)
    found = np.zeros((32, 4), np.uint32)
    tried("try_load_matrices", rows, order, found, transposed)
    for matrix in range(4):
        # Lanes 8 m .. 8 m + 7 name the rows of matrix m.
        content = rows[order[8 * matrix : 8 * matrix + 8]]
        content = content.T if transposed else content
        for place in range(2):
            np.testing.assert_array_equal(
                found[:, matrix] >> (16 * place) & 0xFFFF, content[GROUP[:, 0], IN_GROUP[:, 0] * 2 + place]
            )


@pytest.mark.parametrize("order", ["forward", "reversed", 5])
def test_copies_land_before_the_wait_ends_and_missing_values_are_zero(tried, order):
    source, found = whole(1, 128), poison(160)
    tried("try_copies", source, 20, True, found, order=order)
    there = np.where(np.arange(128) < 80, source, 0).reshape(4, 32)
    np.testing.assert_array_equal(found[:128].reshape(4, 32), np.roll(there, -1, axis=1))
    np.testing.assert_array_equal(found[128:], np.where(np.arange(32) < 20, source[:32], 0))


def test_a_kernel_that_does_not_wait_for_a_copy_is_found(tried):
    found = poison(160)
    tried("try_copies", whole(1, 128), 32, False, found)
    assert np.isnan(found).all()


def test_the_pairs_of_a_register_are_in_order():
    np.testing.assert_array_equal(from_bf16(paired(np.array([1.0, 2.0])).view(np.uint16)), [1, 2])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hs", [12, 64, 104])
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_threads_may_run_in_any_order(dtype, hs):
    q, k, v, dout = (random(seed, 80, hs, dtype=dtype) for seed in range(4))
    results, machine, positions = set(), SoftMachine(library()), positions_of([[3, 68, 9]])
    for order in ("forward", "reversed", 1):
        library().order(order)
        outs = forward(machine, q, k, v, [70, 10], 1, 1)
        gradients = backward(machine, q, k, v, dout, outs, [70, 10], 1, 1)
        some = packed_forward(machine, q, k, v, positions, [70, 10], 1, 1)
        others = packed_backward(machine, q, k, v, positions, dout, some, [70, 10], 1, 1)
        results.add(b"".join(x.tobytes() for x in (*gradients, *others, *(x for pair in (*outs, *some) for x in pair))))
    library().order("forward")
    assert len(results) == 1
