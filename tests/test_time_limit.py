"""Compiling kernels uses up none of a test's time, and a test that hangs is still ended."""

import signal
import threading

import pytest

from asynctile.kernels import cpu
from tests.time_limit import MOST_S


def left_s():
    return signal.getitimer(signal.ITIMER_REAL)[0]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fails", [False, True])
def test_the_clock_stands_while_kernels_are_compiled_and_then_goes_on(monkeypatch, fails):
    during = []

    class Child:
        def __init__(self, *args, **more):
            during.append(left_s())
            raise OSError("no process") if fails else KeyError("nor this")

    monkeypatch.setattr("asynctile.kernels.cpu.compiler.subprocess.Popen", Child)
    before = left_s()
    assert 0 < before <= 60

    def compile_one():
        try:
            cpu.compile_apart("python", ["fill"], lambda name: None, threading.Event())
        except KeyError:
            during.append("raised")

    thread = threading.Thread(target=compile_one)  # as an engine does when it opens
    thread.start()
    thread.join()
    assert 60 < during[0] <= MOST_S
    assert during[1:] == ([] if fails else ["raised"])
    assert 0 < left_s() <= before
