"""Messages of CuPy's driver where it has no GPU: one sentence each, with a remedy."""

import builtins
import functools
import sys
import threading
import types

import pytest

from asynctile import Engine
from asynctile.device import cublas, cublas_lt, cupy_driver, open_device
from asynctile.device.cuda_memory import PinnedMemory
from asynctile.device.driver import OutOfMemory
from asynctile.errors import BudgetError, DeviceError
from asynctile.kernels.cuda import Array, source
from asynctile.program.precision import BF16
from tests.device.test_cublas import Library
from tests.inside_engine import device_of


class RuntimeFailure(Exception):
    """An error as CuPy raises it: its number, and "name: meaning"."""

    def __init__(self, said, status=35):
        super().__init__(said)
        self.status = status


def bindings(monkeypatch, count, driver=None, **more):
    """A CuPy whose runtime knows `count` GPUs, or raises `count`. more: its other functions. driver: CUDA's driver."""

    def get_device_count():
        if isinstance(count, Exception):
            raise count
        return count

    properties = {"name": b"a GPU", "major": more.pop("major", 9), "minor": 0}
    calls = {
        "getDeviceCount": get_device_count, "CUDARuntimeError": RuntimeFailure, "setDevice": lambda index: None,
        "getDeviceProperties": lambda index: properties, "deviceGetAttribute": lambda which, index: 163 << 10,
    }  # fmt: skip
    runtime = types.SimpleNamespace(**calls | more)
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.api", types.SimpleNamespace(driver=driver, runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", types.SimpleNamespace(nvrtc="NVRTC"))


def test_without_cupy_a_gpu_is_refused_with_what_to_install(monkeypatch):
    real = builtins.__import__

    def without_cupy(name, *args):
        if name.startswith("cupy"):
            raise ModuleNotFoundError("No module named 'cupy_backends'")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_cupy)
    with pytest.raises(DeviceError, match=r"'cuda:0' needs CuPy: pip install 'asynctile\[cuda13\]'"):
        open_device("cuda:0")
    assert cupy_driver.gpu_count() == 0


def test_a_cupy_without_a_driver_is_named_as_such(monkeypatch):
    bindings(monkeypatch, RuntimeFailure("cudaErrorInsufficientDriver: CUDA driver version is insufficient"))
    with pytest.raises(DeviceError, match=r"'cuda:1' needs a working NVIDIA driver: cudaErrorIns.*choose 'cpu'"):
        Engine("cuda:1")


@pytest.mark.parametrize(("count", "known"), [(0, "none at all"), (2, "'cuda:0', 'cuda:1'")])
def test_a_missing_gpu_is_refused_with_the_gpus_that_are_there(monkeypatch, count, known):
    bindings(monkeypatch, count)
    with pytest.raises(DeviceError, match=f"'cuda:2' is not there: this process sees {known}"):
        Engine("cuda:2")


def test_auto_is_a_gpu_where_there_is_one_and_the_cpu_elsewhere(monkeypatch, soft_gpu):
    bindings(monkeypatch, 0)
    assert Engine("auto").device == "cpu"
    bindings(monkeypatch, 1)
    engine = Engine("auto", device_memory="1MiB")
    assert engine.device == "cuda:0"
    device_of(engine).close()


# The driver's statuses and their consequences. Names and numbers are those of CUDA's cudaError.
LOCKED = "cuda:0 cannot lock 8.00 KiB of RAM at 0x"
REFUSED = "8.00 KiB more RAM cannot be locked for copies to cuda:0: the operating system refused, because RAM is full or a"


@pytest.mark.parametrize(
    ("status", "name", "kind", "begins", "ends"),
    [
        (2, "cudaErrorMemoryAllocation", BudgetError,
         "8.00 KiB more RAM cannot be locked for copies to cuda:0: the driver has no memory left to map them with",
         "(cudaErrorMemoryAllocation); lower host_memory, or give this process more RAM"),
        (304, "cudaErrorOperatingSystem", BudgetError, REFUSED,
         "container is reached (cudaErrorOperatingSystem); lower host_memory, or give this process more RAM"),
        (712, "cudaErrorHostMemoryAlreadyRegistered", DeviceError, LOCKED,
         "part of them is locked already, by another library in this process; give the engine a process of its own "
         "(cudaErrorHostMemoryAlreadyRegistered)"),
        (801, "cudaErrorNotSupported", DeviceError, LOCKED,
         "cudaErrorNotSupported: as the driver explains it; choose device 'cpu'"),
    ],
)  # fmt: skip
def test_ram_that_is_not_locked_is_explained_in_one_sentence_with_a_remedy(monkeypatch, status, name, kind, begins, ends):
    def host_register(address, nbytes, flags):
        raise RuntimeFailure(f"{name}: as the driver explains it", status)

    bindings(monkeypatch, 1, hostRegister=host_register)
    with pytest.raises(kind) as caught:
        PinnedMemory(cupy_driver.open_driver("cuda:0")).block(8192)
    said = str(caught.value)
    assert said.startswith(begins)
    assert said.endswith(ends)
    assert "\n" not in said and "ulimit" not in said


def products(monkeypatch):
    """Return the library that stands in for cuBLAS and cuBLASLt, whose products pass the trial."""
    library = Library()
    for module in (cublas, cublas_lt):
        monkeypatch.setattr(module, "load", lambda name, text: library)
    monkeypatch.setattr(cupy_driver, "wrong_product", lambda *args: None)
    return library


def test_shapes_without_an_algorithm_are_reported_even_after_the_trial(monkeypatch):
    bindings(monkeypatch, 1, malloc=lambda nbytes: 256)
    library, driver = products(monkeypatch), cupy_driver.open_driver("cuda:0")
    assert driver.epilogues == driver.attention == "not tried yet"
    driver.open_gemm(1, tf32=False)
    a, b, c, bias = (Array(256 * index, shape, BF16) for index, shape in enumerate(((8, 16), (24, 16), (8, 24), (24,)), 1))
    assert driver.gemm_onto(a, b, c, False, True, None, bias)
    assert driver.epilogues == "cuBLASLt"
    library.without = True
    assert not driver.gemm_onto(a, b, c, False, True, c, bias)
    assert driver.epilogues == ("cuBLASLt, with no algorithm for 1 of 2 shapes "
                                "((8, 16) by (24, 16)T of 2 bytes to 2 bytes, source and bias added)")  # fmt: skip


class Graphs:
    """A record of the runtime's calls of graphs, of which one fails."""

    def __init__(self, fails="", status=2):
        self.asked, self._fails, self._status = [], fails, status

    def calls(self):
        names = ("streamEndCapture", "graphInstantiate", "graphUpload", "graphDestroy", "graphExecDestroy")
        return {name: functools.partial(self._call, name) for name in names}

    def _call(self, name, *handles):
        self.asked.append((name, *handles))
        if name == self._fails:
            raise RuntimeFailure("cudaErrorOfSomeKind: as the driver explains it", self._status)
        return {"streamEndCapture": 7, "graphInstantiate": 8}.get(name)


def test_a_graph_is_on_the_device_before_its_first_launch(monkeypatch):
    graphs = Graphs()
    bindings(monkeypatch, 1, **graphs.calls())
    assert cupy_driver.open_driver("cuda:0").end_capture(1) == 8
    assert graphs.asked == [("streamEndCapture", 1), ("graphInstantiate", 7), ("graphDestroy", 7), ("graphUpload", 8, 1)]


@pytest.mark.parametrize(("status", "kind"), [(2, OutOfMemory), (904, RuntimeFailure)])
@pytest.mark.parametrize(
    ("fails", "given_back"),
    [("graphInstantiate", {("graphDestroy", 7)}), ("graphUpload", {("graphDestroy", 7), ("graphExecDestroy", 8)})],
)
def test_a_graph_that_does_not_fit_says_so_and_is_given_back(monkeypatch, fails, given_back, status, kind):
    graphs = Graphs(fails, status)
    bindings(monkeypatch, 1, **graphs.calls())
    with pytest.raises(kind, match="cudaErrorOfSomeKind"):
        cupy_driver.open_driver("cuda:0").end_capture(1)
    assert {asked for asked in graphs.asked if "Destroy" in asked[0]} == given_back


@pytest.mark.parametrize(("kind", "is_pinned"), [(0, False), (1, True), (2, False), (3, False)])
def test_ram_is_pinned_if_the_runtime_knows_it_as_the_hosts(monkeypatch, kind, is_pinned):
    bindings(monkeypatch, 1, pointerGetAttributes=lambda address: types.SimpleNamespace(type=kind))
    assert cupy_driver.open_driver("cuda:0").is_pinned(4096) is is_pinned


class Current:
    """The runtime's calls that make a GPU current. asked: each, and each call that depends on it."""

    def __init__(self, peers=(), fails=0):
        self.asked, self._peers, self._fails = [], peers, fails

    def calls(self):
        names = ("setDevice", "malloc", "streamEndCapture", "graphInstantiate", "graphDestroy", "graphUpload",
                 "deviceEnablePeerAccess")  # fmt: skip
        found = {name: functools.partial(self._call, name) for name in names}
        return found | {"deviceCanAccessPeer": lambda index, other: int((index, other) in self._peers)}

    def _call(self, name, *given):
        self.asked.append((name, *given[:1]) if name in ("setDevice", "deviceEnablePeerAccess") else name)
        if name == "deviceEnablePeerAccess" and self._fails:
            raise RuntimeFailure("cudaErrorOfSomeKind: as the driver explains it", self._fails)
        return 8


def test_each_gpu_is_made_current_only_when_a_thread_turns_to_it(monkeypatch):
    current = Current()
    bindings(monkeypatch, 2, **current.calls())
    drivers = [cupy_driver.open_driver(f"cuda:{index}") for index in range(2)]
    current.asked.clear()
    for index in (1, 0, 0, 1):
        drivers[index].malloc(64)
    assert current.asked == ["malloc", ("setDevice", 0), "malloc", "malloc", ("setDevice", 1), "malloc"]
    current.asked.clear()
    drivers[0].end_capture(1)  # the work captured last was the other GPU's
    assert current.asked[:2] == [("setDevice", 0), "streamEndCapture"]
    current.asked.clear()
    thread = threading.Thread(target=drivers[0].bind)
    thread.start()
    thread.join()
    assert current.asked == [("setDevice", 0)]


def test_a_gpu_reaches_another_one_where_the_machine_can(monkeypatch):
    current = Current(peers={(0, 1)})
    bindings(monkeypatch, 2, **current.calls())
    drivers = [cupy_driver.open_driver(f"cuda:{index}") for index in range(2)]
    current.asked.clear()
    drivers[0].reach(drivers[1])
    drivers[1].reach(drivers[0])
    assert current.asked == [("setDevice", 0), ("deviceEnablePeerAccess", 1)]


@pytest.mark.parametrize(("status", "says"), [(704, []), (711, ["cuda:0 does not reach cuda:1 (cudaErrorOfSomeKind: as the "
                                                               "driver explains it): copies between them go through RAM"])])
def test_a_gpu_that_cannot_reach_another_one_is_logged_and_used(monkeypatch, caplog, status, says):
    """704 means that an engine before has enabled it."""
    bindings(monkeypatch, 2, **Current({(0, 1)}, status).calls())
    first, second = (cupy_driver.open_driver(f"cuda:{index}") for index in range(2))
    first.reach(second)
    assert caplog.messages == says


def test_a_copy_names_no_gpu_because_a_copy_between_named_ones_cannot_be_captured(monkeypatch):
    copies = []
    bindings(monkeypatch, 1, memcpyAsync=lambda *given: copies.append(given), memcpyDefault=4)
    cupy_driver.open_driver("cuda:0").copy(1, 2, 64, 9)
    assert copies == [(1, 2, 64, 4, 9)]


class Modules:
    """The driver's calls of modules. The handle of a kernel is its place in the order of requests."""

    def __init__(self, without=""):
        self.loaded, self.unloaded, self.kernels, self._without = [], [], [], without

    def moduleLoadData(self, code):
        self.loaded.append(code)
        return 5

    def moduleGetFunction(self, module, name):
        assert module == 5
        if self._without and self._without in name:
            raise RuntimeFailure("CUDA_ERROR_NOT_FOUND: named symbol not found")
        self.kernels.append(name)
        return len(self.kernels)

    def moduleUnload(self, module):
        self.unloaded.append(module)


@pytest.fixture
def compiled(monkeypatch):
    """A list of the kernels that were compiled and their compute capability, without a compiler."""
    asked = []
    monkeypatch.setattr(cupy_driver, "machine_code", lambda *args: asked.append(args) or b"code")
    return asked


def test_kernels_are_loaded_as_machine_code_for_this_gpu_and_unloaded_at_the_end(monkeypatch, compiled):
    modules = Modules()
    bindings(monkeypatch, 1, modules)
    driver = cupy_driver.open_driver("cuda:0")
    driver.load(source())
    assert compiled == [("NVRTC", source(), (9, 0))]
    assert modules.loaded == [b"code"]
    assert modules.kernels == cupy_driver.KERNEL.findall(source())
    driver.close()
    driver.close()
    assert modules.unloaded == [5]


def test_a_gpu_without_bf16_loads_every_kernel_but_those_of_tensor_cores(monkeypatch, compiled):
    modules = Modules(without="_mma_")
    bindings(monkeypatch, 1, modules, major=7)
    cupy_driver.open_driver("cuda:0").load(source())
    assert "adamw_f32" in modules.kernels and "attention_plain_f32" in modules.kernels


@pytest.mark.parametrize(
    ("error", "said"),
    [(RuntimeError("kernels.cu(1): error: no\nmore of it"), "kernels.cu(1): error: no"),
     (ModuleNotFoundError("No module named 'cupy_backends'"), "No module named 'cupy_backends'"), (OSError(), "OSError")],
)  # fmt: skip
def test_kernels_that_do_not_compile_are_refused_in_one_sentence(monkeypatch, error, said):
    def machine_code(*args):
        raise error

    bindings(monkeypatch, 1, Modules())
    monkeypatch.setattr(cupy_driver, "machine_code", machine_code)
    with pytest.raises(DeviceError) as caught:
        cupy_driver.open_driver("cuda:0").load(source())
    assert str(caught.value) == (
        f"the CUDA kernels do not compile for a GPU ({said}); 'asynctile info' shows what is installed")


class Launches(Modules):
    """The driver's calls of modules, and those that launch."""

    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

    def __init__(self):
        super().__init__()
        self.limits, self.launched = [], []

    def funcSetAttribute(self, function, which, value):
        assert which == 8
        self.limits.append((function, value))

    def launchKernel(self, *args):
        self.launched.append(args)


def test_a_kernel_gets_all_shared_memory_of_this_gpu_and_its_limit_is_raised_when_needed(monkeypatch, compiled):
    launches = Launches()
    bindings(monkeypatch, 1, launches)
    driver = cupy_driver.open_driver("cuda:0")
    assert driver.shared_nbytes == 163 << 10
    driver.load('extern "C" __global__ void attention()')
    for shared in (0, 48 << 10, 80 << 10, 60 << 10, 163 << 10):
        driver.launch("attention", (3, 2), 128, shared, 1, 9)
    assert launches.limits == [(1, 80 << 10), (1, 163 << 10)]
    assert launches.launched[0] == (1, 3, 2, 1, 128, 1, 1, 0, 9, 1, 0)
    with pytest.raises(DeviceError) as caught:
        driver.launch("attention", (3,), 128, 200 << 10, 1, 9)
    assert str(caught.value) == ("kernel attention needs 200.00 KiB of shared memory per block and a GPU has "
                                 "163.00 KiB; choose device 'cpu'")  # fmt: skip
    assert len(launches.launched) == 5


def test_library_handles_end_once_and_cudnn_is_kept_for_the_next_engine_on_this_gpu(monkeypatch):
    library, given, cudnn = products(monkeypatch), [], types.SimpleNamespace(words="cuDNN")
    bindings(monkeypatch, 1, malloc=lambda nbytes: 256, free=lambda address: library.calls.append(("free", address)))
    kept = types.SimpleNamespace(take=lambda *args: (cudnn, ""), give=lambda *args: given.append(args))
    monkeypatch.setattr(cupy_driver, "kept_cudnn", lambda index: kept)
    driver = cupy_driver.open_driver("cuda:0")
    driver.open_gemm(1, tf32=False)
    driver.open_attention(1)
    library.calls.clear()
    for _ in range(2):
        driver.close_libraries()
    assert [name for name, *_ in library.calls] == ["cublasLtDestroy", "cublasDestroy_v2", "free"]
    assert library.calls[-1] == ("free", 256) and given == [(cudnn, driver)]


def test_a_process_has_one_cudnn_for_a_gpu():
    kept = [cupy_driver.kept_cudnn(index) for index in (0, 1, 0)]
    assert kept[0] is kept[2] is not kept[1]
