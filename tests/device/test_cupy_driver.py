"""What CuPy's driver says where there is no GPU for it: one sentence each, with the way out."""

import builtins
import types

import pytest

from asynctile import Engine
from asynctile.device import cupy_driver, open_device
from asynctile.errors import DeviceError


class RuntimeFailure(Exception):
    status = 35


def bindings(monkeypatch, count):
    """CuPy with a runtime that knows `count` GPUs, or raises it."""

    def get_device_count():
        if isinstance(count, Exception):
            raise count
        return count

    runtime = types.SimpleNamespace(getDeviceCount=get_device_count, CUDARuntimeError=RuntimeFailure)
    monkeypatch.setattr(cupy_driver, "_bindings", lambda name: (runtime, None))


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
def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(monkeypatch, count, known):
    bindings(monkeypatch, count)
    with pytest.raises(DeviceError, match=f"'cuda:2' is not there: this process sees {known}"):
        Engine("cuda:2")


def test_auto_is_the_cpu_where_there_is_no_gpu_and_a_gpu_where_there_is_one(monkeypatch, soft_gpu):
    bindings(monkeypatch, 0)
    assert Engine("auto").device == "cpu"
    bindings(monkeypatch, 1)
    engine = Engine("auto", device_memory="1MiB")
    assert engine.device == "cuda:0"
    engine._device.close()
