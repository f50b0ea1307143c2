"""The process that compiles kernels: it reports its progress, its death is one line, and it outlives nobody."""

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from asynctile import DeviceError, Engine
from asynctile.kernels import cpu
from asynctile.kernels.cpu.compiler import compile_apart

#: Ends, without a chance to clean up, as soon as its child has begun.
PARENT = """
import functools, os, signal, subprocess, sys
subprocess.Popen = functools.partial(subprocess.Popen, pass_fds=(int(sys.argv[1]),))
from asynctile.kernels import cpu
cpu.warm(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.fixture
def fake(tmp_path):
    """Return a function that makes a shell script which replaces the interpreter; its process id is in the file `id`."""

    def make(script):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/id\n{script}\n")
        path.chmod(0o700)
        return str(path)

    return make


def test_a_killed_child_is_reported_in_one_sentence(fake):
    begun = []
    with pytest.raises(DeviceError, match=r"ended by signal 9 \(Killed\) at kernel 'fill'; if memory ran out") as caught:
        compile_apart(fake("echo add; echo fill; kill -9 $$"), ["add", "fill", "gemm"], begun.append, threading.Event())
    assert begun == ["add", "fill"]
    assert "\n" not in str(caught.value)


def test_a_child_that_cannot_compile_leaves_the_work_to_the_caller(fake, tmp_path):
    for python in (fake("echo noise; exit 3"), str(tmp_path / "nowhere")):
        begun = []
        compile_apart(python, ["fill"], begun.append, threading.Event())
        assert begun == []


def test_a_child_that_is_told_to_stop_is_gone(fake, tmp_path):
    stop = threading.Event()
    compile_apart(fake("echo fill; exec sleep 1000"), ["fill"], lambda _: stop.set(), stop)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "id").read_text()), 0)


def test_an_error_of_the_caller_ends_the_child_too(fake, tmp_path):
    def begun(name):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_apart(fake("echo fill; exec sleep 1000"), ["fill"], begun, threading.Event())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "id").read_text()), 0)


def test_a_child_ends_with_its_killed_parent(tmp_path):
    ours, theirs = os.pipe()
    environment = dict(os.environ, NUMBA_CACHE_DIR=str(tmp_path), PYTHONPATH=os.pathsep.join(sys.path))
    ended = subprocess.run([sys.executable, "-c", PARENT, str(theirs)], env=environment, pass_fds=(theirs,))
    os.close(theirs)
    assert ended.returncode == -signal.SIGKILL
    assert os.read(ours, 1) == b""  # once nobody has the other end any more, and the child had it
    os.close(ours)
    assert len(list(tmp_path.rglob("*.nbi"))) < 3  # not all that were missing


async def test_an_engine_cancelled_while_kernels_are_compiled_closes_at_once(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(cpu, "is_ready", lambda name: False)
    monkeypatch.setattr(cpu, "interpreter", lambda: fake("echo fill; exec sleep 1000"))
    here, reached = asyncio.get_running_loop(), asyncio.Event()
    before = set(threading.enumerate())

    async def open_engine():
        async with Engine("cpu", report=lambda *_: here.call_soon_threadsafe(reached.set)):
            pytest.fail("it opened without its kernels")

    opening = asyncio.create_task(open_engine())
    await reached.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "id").read_text()), 0)
    assert set(threading.enumerate()) == before
