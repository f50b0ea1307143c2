"""Fixtures and settings that several suites need."""

import gc
import os
import signal
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

# Set before the kernels are imported, because they look up their cache folder on import. Tests keep their kernels in this
# checkout, from one session to the next, and never touch the user's cache.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).resolve().parents[1] / ".pytest_cache")

from asynctile.kernels.cpu.compiler import compile_apart
from asynctile.measure import known
from asynctile.program.precision import PRECISIONS
from asynctile.schedule.rates import CORES, assumed
from tests.cuda.build import missing
from tests.cuda.driver import SoftDriver
from tests.cuda.nccl import SoftNccl
from tests.cuda.node import SoftNode, opener
from tests.laws import EXAMPLES
from tests.time_limit import not_counted
from tests.transitions import Transitions

# No test depends on how fast the machine is. Each session draws other examples, so few are enough.
settings.register_profile("laws", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("tests", settings.get_profile("laws"), max_examples=EXAMPLES // 2)
settings.load_profile("tests")  # `make laws` loads the other one

# No garbage is collected within a test unless it asks: a recorded step is many objects and no garbage, and looking through them
# took a twelfth of the CPU time.
gc.set_threshold(0)
#: Bytes by which the process may grow before garbage is collected between two tests of a module.
GROWTH_NBYTES = 256 << 20

# A shell starts background programs with Ctrl-C ignored, and nohup starts them with hang-ups ignored. Every program that the
# tests stop by these signals would inherit that.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_configure(config):
    config.pluginmanager.register(Transitions())
    config.pluginmanager.register(Collections())


class Collections:
    """A plugin that collects garbage after a test if the process has grown much since the last time."""

    def __init__(self):
        self._process = psutil.Process()
        self._least_nbytes = self._process.memory_info().rss

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self):
        if self._process.memory_info().rss > self._least_nbytes + GROWTH_NBYTES:
            gc.collect()
            self._least_nbytes = self._process.memory_info().rss


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage while tests are collected: there is none, and each collection visits every test found so far."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def heap_of_this_module():
    """Freeze the heap, so that garbage collections in a test skip what pytest collected and earlier modules left.

    With thousands of tests each collection took most of a second, and `asynctile stress` collects after every call.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def rates_of_every_test():
    """Assume the same rates on every machine, however busy it is; processes that tests start assume them as well."""
    known.keep(known.ON_CORES, "fp32", CORES)
    for precision in PRECISIONS:
        known.keep("cuda:0", precision, assumed("cuda:0", precision))  # soft GPUs have this name


@pytest.fixture(autouse=True, scope="session")
def kernels_compiled_off_the_clock():
    """Do not count the compilation of kernels as the time of the test that happens to need them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asynctile.kernels.cpu.compile_apart", not_counted(compile_apart))
        yield


@pytest.fixture(autouse=True, scope="session")
def nothing_slow_that_no_test_sees():
    """Do not wait for the disk, since no test loses power; read the version of each package once.

    Every small training would do either a dozen times.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda fd: None)
        patch.setattr("os.fdatasync", lambda fd: None)
        for module in ("asynctile.cli.info", "asynctile.cli.train", "asynctile.layers.training_state"):
            patch.setattr(f"{module}.version", cache(metadata.version))
        yield


@pytest.fixture(autouse=True, scope="session")
def hung_threads_left_soon():
    """Engines leave hung threads behind after 0.3 s: tests of hangs need not wait for seconds as they close."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asynctile.lifetime.LAST_PATIENCE_S", 0.3)
        yield


@pytest.fixture
def soft_gpu(monkeypatch):
    """Return a function that shapes the next GPUs of Engine(device="cuda:0"), or of several, by SoftDriver's options.

    The drivers of these GPUs run on the CPU, on one machine, `node`. The function's attribute `opened` lists the drivers that
    were opened, in order.
    """
    if why := missing():
        pytest.skip(why)
    options = {}

    def shape(**changes):
        options.clear()
        options.update(changes)

    def open_soft(name):
        shape.opened.append(opener(SoftDriver, shape.node, **options)(name))
        return shape.opened[-1]

    shape.opened, shape.open, shape.node = [], open_soft, SoftNode()
    monkeypatch.setattr("asynctile.device.open_driver", open_soft)
    return shape


@pytest.fixture
def soft_nccl(monkeypatch, soft_gpu):
    """Return the NCCL between the GPUs of `soft_gpu`. At the end, every communicator must have been freed, by `abort`."""
    soft_gpu()
    library = SoftNccl(soft_gpu.node)
    monkeypatch.setattr("asynctile.nccl.nccl_exchange.load", lambda: library)
    monkeypatch.setattr("asynctile.nccl.nccl_exchange.open_driver", soft_gpu.open)
    yield library
    assert not [communicator for communicator in library.made if communicator.comm]
    assert library.destroyed == library.misused == 0
