"""What several suites need."""

import gc
import signal

import pytest

from asynctile.kernels.cpu.compiler import compile_apart
from tests.alone import alone
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
def packings_of_this_session(tmp_path_factory):
    """Packings are kept, but no test begins with those of an earlier session."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("kernels")
        patch.setattr("asynctile.repeat.packing_files.cache_folder", lambda: folder)
        yield


@pytest.fixture(autouse=True, scope="session")
def kernels_compiled_off_the_clock(tmp_path_factory):
    """In whichever test that is, and by one process of those that test side by side: the others then load them."""
    lock = tmp_path_factory.getbasetemp().parent / "compiling"

    def compiled(*args):
        with alone(lock):
            compile_apart(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asynctile.kernels.cpu.compile_apart", not_counted(compiled))
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
