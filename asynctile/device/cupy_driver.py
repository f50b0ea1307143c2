"""The driver of a GPU (driver.py) through CuPy: its bindings of the CUDA runtime and driver, and the NVIDIA libraries.

CuPy's arrays, memory pools and current streams are not used. Long because it contains every call of a GPU's runtime and driver.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asynctile.device.cublas import WORKSPACE_NBYTES, Cublas
from asynctile.device.cublas_lt import CublasLt
from asynctile.device.cudnn import Cudnn
from asynctile.device.cudnn_kept import KeptCudnn
from asynctile.device.driver import Driver, OutOfMemory
from asynctile.device.nvrtc import machine_code
from asynctile.device.probe import wrong_product
from asynctile.errors import DeviceError
from asynctile.kernels.cuda.array import Array
from asynctile.storage.sizes import format_size

logger = logging.getLogger(__name__)

#: The definition of a kernel, as such or by a macro; the group is its name.
KERNEL = re.compile(r'^(?:extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?|[A-Z_]+_KERNEL\()(\w+)', re.MULTILINE)
#: cudaErrorMemoryAllocation, cudaErrorOperatingSystem, cudaErrorHostMemoryAlreadyRegistered.
MEMORY_ALLOCATION, OPERATING_SYSTEM, ALREADY_REGISTERED = 2, 304, 712
#: Why RAM could not be locked, for errors that mean a shortage.
NOT_LOCKED = {
    MEMORY_ALLOCATION: "the driver has no memory left to map them with",
    OPERATING_SYSTEM: "the operating system refused, because RAM is full or a limit of this process or container is reached",
}
#: cudaMemoryTypeHost: RAM that was allocated or registered by the runtime.
MEMORY_OF_HOST = 1
#: cudaErrorPeerAccessAlreadyEnabled: by an earlier engine of this process.
PEER_ACCESS_ALREADY_ENABLED = 704
#: cudaDevAttrMaxSharedMemoryPerBlockOptin, and the shared memory that a block has without opting in.
SHARED_MEMORY_OF_A_BLOCK, SHARED_NBYTES = 97, 48 << 10
#: cudaHostRegisterPortable, cudaHostRegisterMapped: valid in every context, and at the same address for kernels.
PORTABLE, MAPPED = 1, 2
#: The GPU that a driver last made current in each thread; CUDA has one current GPU in a thread.
_current = threading.local()


def gpu_count() -> int:
    """Return the number of GPUs that this process could use; 0 where CuPy or the driver is missing."""
    try:
        return int(_bindings("cuda:0")[0].getDeviceCount())
    except Exception:  # open_driver reports the error when a GPU is asked for by name
        return 0


def gpu_title(name: str) -> str | None:
    """Return the maker's name of the GPU "cuda" or "cuda:N", None without such a GPU or without CuPy. Opens nothing."""
    try:
        properties = _bindings(name)[0].getDeviceProperties(int(name.partition(":")[2] or 0))
        return str(properties["name"].decode())
    except Exception:  # as in gpu_count
        return None


def open_driver(name: str) -> Driver:
    """Return CuPy as the driver of "cuda" or "cuda:N". Raises DeviceError, in one sentence, if anything is missing."""
    return CupyDriver(int(name.partition(":")[2] or 0))


class CupyDriver:
    """The driver of the GPU with this index."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = f"cuda:{index}"
        self.runtime, self._driver = _bindings(self.name)
        _check_index(self.runtime, index)
        self.runtime.setDevice(index)  # whatever else the process has made current in this thread
        _current.index = index
        properties = self.runtime.getDeviceProperties(index)
        self.title = properties["name"].decode()
        self.capability = (properties["major"], properties["minor"])
        self.shared_nbytes = self.runtime.deviceGetAttribute(SHARED_MEMORY_OF_A_BLOCK, index)
        self._functions: dict[str, int] = {}
        self._module = 0
        self._blas: Cublas | None = None
        self._lt: CublasLt | None = None
        self._cudnn: Cudnn | None = None
        self._epilogues = self._attention = "not tried yet"
        #: kernels whose limit of dynamic shared memory was raised, with the limit
        self._shared: dict[str, int] = {}

    @property
    def epilogues(self) -> str:
        return self._epilogues if self._lt is None else self._lt.words

    @property
    def attention(self) -> str:
        return self._attention if self._cudnn is None else self._cudnn.words

    def bind(self) -> None:
        if getattr(_current, "index", None) != self.index:
            self.runtime.setDevice(self.index)
            _current.index = self.index

    def reach(self, other: Driver) -> None:
        if not self.runtime.deviceCanAccessPeer(self.index, other.index):
            return
        self.bind()
        try:
            self.runtime.deviceEnablePeerAccess(other.index)
        except self.runtime.CUDARuntimeError as error:
            if error.status != PEER_ACCESS_ALREADY_ENABLED:
                logger.warning("%s does not reach %s (%s): copies between them go through RAM", self.name, other.name, error)

    def memory(self) -> tuple[int, int]:
        self.bind()
        free, total = self.runtime.memGetInfo()
        return free, total

    def malloc(self, nbytes: int) -> int:
        self.bind()
        with self._memory_of_the_device():
            return int(self.runtime.malloc(nbytes))

    def free(self, address: int) -> None:
        self.bind()
        self.runtime.free(address)

    def pin(self, address: int, nbytes: int) -> None:
        self.bind()
        try:
            self.runtime.hostRegister(address, nbytes, PORTABLE | MAPPED)
        except self.runtime.CUDARuntimeError as error:
            said = str(error).partition(":")[0]
            if error.status in NOT_LOCKED:
                raise OutOfMemory(f"{NOT_LOCKED[error.status]} ({said})") from error
            raise DeviceError(
                f"{self.name} cannot lock {format_size(nbytes)} of RAM at {address:#x}: "
                + ("part of them is locked already, by another library in this process; give the engine a process of its own "
                   f"({said})" if error.status == ALREADY_REGISTERED else f"{error}; choose device 'cpu'")
            ) from error

    def unpin(self, address: int) -> None:
        self.bind()
        self.runtime.hostUnregister(address)

    def is_pinned(self, address: int) -> bool:
        self.bind()
        return bool(self.runtime.pointerGetAttributes(address).type == MEMORY_OF_HOST)

    def new_stream(self) -> int:
        self.bind()
        return int(self.runtime.streamCreateWithFlags(self.runtime.streamNonBlocking))

    def destroy_stream(self, stream: int) -> None:
        self.bind()
        self.runtime.streamDestroy(stream)

    def new_event(self, *, timed: bool = False) -> int:
        self.bind()
        # A waiting thread sleeps instead of spinning: there are three such threads, and the event loop needs the interpreter.
        flags = self.runtime.eventBlockingSync | (0 if timed else self.runtime.eventDisableTiming)
        return int(self.runtime.eventCreateWithFlags(flags))

    def destroy_event(self, event: int) -> None:
        self.bind()
        self.runtime.eventDestroy(event)

    def record(self, event: int, stream: int) -> None:
        self.runtime.eventRecord(event, stream)

    def wait(self, stream: int, event: int) -> None:
        self.runtime.streamWaitEvent(stream, event)

    def synchronize(self, event: int) -> None:
        self.runtime.eventSynchronize(event)

    def elapsed_s(self, start: int, end: int) -> float:
        return float(self.runtime.eventElapsedTime(start, end)) / 1e3

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        # Not cudaMemcpyPeerAsync: it cannot be captured. By its default kind a copy finds the GPUs from the addresses.
        self.runtime.memcpyAsync(target, source, nbytes, self.runtime.memcpyDefault, stream)

    def load(self, source: str) -> None:
        self.bind()
        try:
            self._module = self._driver.moduleLoadData(machine_code(_compiler(), source, self.capability))
            for kernel in KERNEL.findall(source):
                if "_mma_" in kernel and self.capability < (8, 0):
                    continue  # its tensor cores have no bf16
                self._functions[kernel] = self._driver.moduleGetFunction(self._module, kernel)
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise DeviceError(f"the CUDA kernels do not compile for {self.title} ({reason}); 'asynctile info' shows what is "
                              "installed") from error

    def launch(self, kernel: str, grid: tuple[int, ...], block: int, shared: int, params: int, stream: int) -> None:
        function = self._functions[kernel]
        if shared > self._shared.get(kernel, SHARED_NBYTES):
            if shared > self.shared_nbytes:
                raise DeviceError(
                    f"kernel {kernel} needs {format_size(shared)} of shared memory per block and {self.title} has "
                    f"{format_size(self.shared_nbytes)}; choose device 'cpu'"
                )
            self._driver.funcSetAttribute(function, self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
            self._shared[kernel] = shared
        x, y, z = (*grid, 1, 1)[:3]
        self._driver.launchKernel(function, x, y, z, block, 1, 1, shared, stream, params, 0)

    def open_gemm(self, stream: int, *, tf32: bool) -> None:
        workspace = self.malloc(WORKSPACE_NBYTES)
        self._blas = Cublas(stream, tf32=tf32, workspace=workspace)
        try:
            self._lt = CublasLt(stream, tf32=tf32, workspace=workspace)
        except (DeviceError, RuntimeError) as error:
            self._epilogues = f"not used: {error}"
            return
        wrong = wrong_product(self._lt.gemm, self, stream)
        if wrong is not None:
            self._epilogues = f"not used: cuBLASLt gives {wrong}"
            self._lt.close()
            self._lt = None

    def gemm(self, a: Array, b: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
        assert self._blas is not None, "open_gemm comes first"
        self._blas.gemm(a, b, c, ta, tb, accumulate)

    def gemm_onto(
        self, a: Array, b: Array, c: Array, ta: bool, tb: bool, source: Array | None, bias: Array | None
    ) -> bool:
        return self._lt is not None and self._lt.gemm(a, b, c, ta, tb, source, bias)

    def open_attention(self, stream: int) -> None:
        self.bind()
        self._cudnn, self._attention = kept_cudnn(self.index).take(self, stream)

    def attend(self, q: Array, k: Array, v: Array, out: Array, stats: Array, seqs: int, heads: int) -> bool:
        return self._cudnn is not None and self._cudnn.attend(q, k, v, out, stats, seqs, heads)

    def attend_backward(
        self, q: Array, k: Array, v: Array, out: Array, dout: Array, stats: Array, dq: Array, dk: Array, dv: Array,
        seqs: int, heads: int,
    ) -> bool:  # fmt: skip
        operands = (q, k, v, out, dout, stats, dq, dk, dv)
        return self._cudnn is not None and self._cudnn.attend_backward(*operands, seqs, heads)

    def close_libraries(self) -> None:
        self.bind()
        blas, self._blas, lt, self._lt = self._blas, None, self._lt, None
        if lt is not None:
            lt.close()
        if blas is not None:
            blas.close()
            self.free(blas.workspace)
        if self._cudnn is not None:
            kept_cudnn(self.index).give(self._cudnn, self)
            self._cudnn = None

    def begin_capture(self, stream: int) -> None:
        self.runtime.streamBeginCapture(stream, self.runtime.streamCaptureModeRelaxed)

    def end_capture(self, stream: int) -> Any:
        self.bind()  # the last captured work may be another GPU's
        written = self.runtime.streamEndCapture(stream)
        try:
            with self._memory_of_the_device():
                graph = self.runtime.graphInstantiate(written)
        finally:
            self.runtime.graphDestroy(written)
        try:
            # Otherwise the first launch would upload it, where a lack of memory leaves no other way to run.
            with self._memory_of_the_device():
                self.runtime.graphUpload(graph, stream)
        except BaseException:
            self.runtime.graphExecDestroy(graph)
            raise
        return graph

    def launch_graph(self, graph: Any, stream: int) -> None:
        self.runtime.graphLaunch(graph, stream)

    def destroy_graph(self, graph: Any) -> None:
        self.bind()
        self.runtime.graphExecDestroy(graph)

    @contextmanager
    def _memory_of_the_device(self) -> Iterator[None]:
        """Turn CUDA's allocation error into OutOfMemory."""
        try:
            yield
        except self.runtime.CUDARuntimeError as error:
            if error.status == MEMORY_ALLOCATION:
                raise OutOfMemory(str(error)) from error
            raise

    def close(self) -> None:
        self.bind()
        self._functions.clear()
        if self._module:
            self._driver.moduleUnload(self._module)
            self._module = 0


def _bindings(name: str) -> tuple[Any, Any]:
    """Return CuPy's CUDA runtime and driver. Raises DeviceError if CuPy does not load."""
    try:
        from cupy_backends.cuda.api import driver, runtime
    except ImportError as error:
        if "cupy" not in str(error):
            raise DeviceError(
                f"device {name!r} needs CuPy, which does not load: {error}; reinstall CuPy, or choose 'cpu'"
            ) from error
        raise DeviceError(
            f"device {name!r} needs CuPy: pip install 'asynctile[cuda13]' (or [cuda12] for an older driver), or choose 'cpu'"
        ) from error
    return runtime, driver


@functools.cache
def kept_cudnn(index: int) -> KeptCudnn:
    """Return this process's cuDNN handles for the GPU `index`."""
    return KeptCudnn()


def _compiler() -> Any:
    """Return CuPy's binding of NVRTC."""
    from cupy_backends.cuda.libs import nvrtc

    return nvrtc


def _check_index(runtime: Any, index: int) -> None:
    """Raise DeviceError unless the GPU `index` is there."""
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f"device 'cuda:{index}' needs a working NVIDIA driver: {error}; choose 'cpu'") from error
    if index >= count:
        known = ", ".join(f"'cuda:{number}'" for number in range(count)) or "none at all"
        raise DeviceError(f"device 'cuda:{index}' is not there: this process sees {known}")
