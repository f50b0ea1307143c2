"""What several suites need."""

import gc
import os
import signal
from pathlib import Path

import pytest

# Before kernels are imported, which look where they are kept: those of tests are this checkout's, from one session to the next,
# and no test touches the cache of who runs it.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).resolve().parents[1] / ".pytest_cache")

from asynctile.kernels.cpu.compiler import compile_apart
from asynctile.measure import known
from asynctile.program.precision import PRECISIONS
from asynctile.schedule.rates import CORES, assumed
from tests.cuda.build import missing
from tests.cuda.driver import SoftDriver
from tests.time_limit import not_counted
from tests.transitions import Transitions

# A shell starts what it puts in the background with Ctrl-C ignored, nohup what it starts with a hang-up ignored; and so would
# every program that tests stop by them.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_configure(config):
    config.pluginmanager.register(Transitions())


@pytest.fixture(autouse=True, scope="module")
def heap_of_this_module():
    """What pytest collected and earlier modules left is not gone through again by every collection of garbage in a test: with
    thousands of tests each took most of a second, and `asynctile stress` collects behind every call."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def rates_of_every_test():
    """Rates are those that are assumed, on every machine and however busy it is; in processes that tests start as well."""
    known.keep(known.ON_CORES, "fp32", CORES)
    for precision in PRECISIONS:
        known.keep("cuda:0", precision, assumed("cuda:0", precision))  # what soft GPUs are called


@pytest.fixture(autouse=True, scope="session")
def kernels_compiled_off_the_clock():
    """In whichever test that is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asynctile.kernels.cpu.compile_apart", not_counted(compile_apart))
        yield


@pytest.fixture
def soft_gpu(monkeypatch):
    """A GPU for Engine(device="cuda:0") whose driver is on the CPU: call it with SoftDriver's options to shape what opens next.

    opened: the drivers that were opened, last one last.
    """
    if why := missing():
        pytest.skip(why)
    options = {}

    def shape(**changes):
        options.clear()
        options.update(changes)

    def open_soft(name):
        shape.opened.append(SoftDriver(**options))
        return shape.opened[-1]

    shape.opened, shape.open = [], open_soft
    monkeypatch.setattr("asynctile.device.open_driver", open_soft)
    return shape
