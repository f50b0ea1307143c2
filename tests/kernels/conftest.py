"""The machines on which the tests of this folder run kernels: the CPU, and CUDA on the CPU. tests/gpu has another one."""

from __future__ import annotations

import pytest

from tests.cuda.build import library, missing
from tests.cuda.machine import CpuMachine, SoftMachine


def pytest_collection_modifyitems(config, items):
    """Leave out tiles in bf16 on the CPU, which has no kernels for them."""

    def has_kernels(item):
        params = item.callspec.params if hasattr(item, "callspec") else {}
        return params.get("machine") != "cpu" or "bf16" not in params.values()

    config.hook.pytest_deselected(items=[item for item in items if not has_kernels(item)])
    items[:] = filter(has_kernels, items)


@pytest.fixture(params=["cpu", "cuda"])
def machine(request):
    """A machine with run(verb, arrays, params, number=None)."""
    if request.param == "cpu":
        return CpuMachine()
    if missing():
        pytest.skip(missing())
    library().order("forward")
    return SoftMachine(library())
