"""Tests that only a real GPU can decide. Without one they are skipped with a reason; bench/gpu.sh runs them.

--rehearse runs them on a driver on the CPU (tests/cuda/driver.py), which is slow and proves only the tests. Fixtures are plain
functions, and coroutines are run here where no plugin does it, so a machine needs nothing but pytest.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from asynctile.device import open_device
from asynctile.device.cupy_driver import open_driver
from asynctile.errors import DeviceError

#: Modules whose tests and assertions are used here. GPU time is too precious for a bare "AssertionError".
BORROWED = ("tests.kernels", "tests.layers.training", "tests.reference", "tests.gpu.machine")
pytest.register_assert_rewrite(*(name for name in BORROWED if name not in sys.modules))

from tests.gpu.machine import HardMachine  # noqa: E402

NAME = "cuda:0"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rehearse", action="store_true", help="run tests/gpu on a driver on the CPU")


def _rehearsed(config: pytest.Config) -> bool:
    return bool(config.getoption("--rehearse", default=False))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine that no plugin has taken."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = inspect.signature(test).parameters
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def missing(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """Yield why there is no GPU to test on, or None if there is one. In a rehearsal every engine opens a driver on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        if _rehearsed(request.config):
            from tests.cuda.driver import SoftDriver

            patch.setattr("asynctile.device.open_driver", lambda name: SoftDriver(nbytes=4 << 30, attends=True))
            yield None
            return
        try:
            open_driver(NAME).close()
        except DeviceError as error:
            yield str(error)
        else:
            yield None


@pytest.fixture(scope="module", autouse=True)
def _needs_a_gpu(missing: str | None) -> None:
    if missing is not None:
        pytest.skip(f"no GPU: {missing}")


@pytest.fixture(scope="session")
def rehearsed(request: pytest.FixtureRequest) -> bool:
    """True if these tests run without a GPU and should do less of the same."""
    return _rehearsed(request.config)


@pytest.fixture(scope="module")
def device(_needs_a_gpu: None) -> Iterator[Any]:
    """A started CudaDevice with its kernels loaded."""
    made = open_device(NAME)
    made.start()
    made.warm(None)
    yield made
    made.close()


@pytest.fixture
def machine(device: Any) -> HardMachine:
    """The machine that the tests of tests/kernels expect, with run(verb, arrays, params, number=None)."""
    return HardMachine(device)
