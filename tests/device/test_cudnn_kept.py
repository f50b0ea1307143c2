"""Engines on one GPU, one after another and side by side: cuDNN is tried once, and its plans are made once."""

import pytest

from asynctile.device import CudaDevice, cudnn_trial
from asynctile.device.cudnn_kept import KeptCudnn
from asynctile.device.driver import OutOfMemory
from asynctile.errors import DeviceError
from tests.cuda.build import missing
from tests.cuda.driver import SoftDriver

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(autouse=True)
def _short_trial(monkeypatch):
    """Try the smallest case alone: which handle is kept does not depend on the cases."""
    monkeypatch.setattr(cudnn_trial, "CASES", cudnn_trial.CASES[2:3])


@pytest.fixture
def driver():
    made = SoftDriver(attends=True)
    handles = made.new_stream(), made.new_stream()
    yield made
    for stream in handles:
        made.destroy_stream(stream)


@pytest.fixture
def trials(monkeypatch):
    """A list with an entry for every trial."""
    tried, true = [], cudnn_trial.wrong_attention
    monkeypatch.setattr(cudnn_trial, "wrong_attention", lambda *args: tried.append(args) or true(*args))
    return tried


def test_the_next_engine_gets_the_handle_and_its_plans_on_a_stream_of_its_own(driver, trials, monkeypatch):
    first, second = driver.streams
    kept = driver.kept
    one, words = kept.take(driver, first)
    kept.give(one, driver)
    assert driver.library.streams == {1: None}, "the stream may go now"
    assert driver.memory()[0] == driver.memory()[1]
    monkeypatch.setattr(driver.library, "pygraph", None)
    again, said = kept.take(driver, second)
    assert again is one and said == words == "cuDNN 9.16"
    assert driver.library.streams == {1: driver.streams[second]}
    assert again.workspace in driver.allocated
    assert cudnn_trial.wrong_attention(again, driver, second) is None, "all plans of the trial are there"
    assert len(trials) == 2


def test_engines_side_by_side_have_their_own_handles_and_one_trial(driver, trials):
    first, second = driver.streams
    one, _ = driver.kept.take(driver, first)
    other, words = driver.kept.take(driver, second)
    assert one is not other and one.workspace != other.workspace
    assert words == "cuDNN 9.16" and len(trials) == 1


def test_a_refused_library_is_not_tried_again(driver, trials):
    loads = []

    def load():
        loads.append(1)
        raise DeviceError("cuDNN's frontend does not load")

    kept = KeptCudnn(load, 1 << 20)
    assert [kept.take(driver, 1) for _ in range(2)] == [(None, "not used: cuDNN's frontend does not load")] * 2
    assert len(loads) == 1 and not trials


def test_a_gpu_without_room_for_the_workspace_leaves_the_handle_for_the_next(driver):
    stream, _ = driver.streams
    one, _ = driver.kept.take(driver, stream)
    driver.kept.give(one, driver)
    driver.nbytes = 1 << 19
    with pytest.raises(OutOfMemory):
        driver.kept.take(driver, stream)
    driver.nbytes = 1 << 30
    assert driver.kept.take(driver, stream)[0] is one


def test_the_device_ends_its_libraries_before_their_streams():
    driver, called = SoftDriver(attends=True), []

    def noted(name):
        call = getattr(driver, name)
        return lambda *args: called.append(name) or call(*args)

    device = CudaDevice(driver, "bf16")
    for name in ("close_libraries", "destroy_stream", "close"):
        setattr(driver, name, noted(name))
    device.start()
    device.close()
    assert called == ["close_libraries", *["destroy_stream"] * 3, "close"]
    assert list(driver.library.streams.values()) == [None]
    assert driver.memory()[0] == driver.memory()[1]
