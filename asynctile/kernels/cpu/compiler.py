"""Kernels compiled by a process of its own, which leaves them in Numba's cache on disk; this one then only loads them.

Compiling takes seconds, much of it Python, which a service's loop would feel, and nothing can break it off inside a process.
A process can be ended. Covers both ends; the child's start is __main__.py, and which kernels are missing is jit.py's.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from asynctile.errors import DeviceError

#: How soon the child ends after it was told to stop, in seconds.
POLL_S = 0.05


def compile_apart(python: str, names: Sequence[str], begun: Callable[[str], None], stop: threading.Event) -> None:
    """Let a child compile these kernels into the cache; begun(name) before each. Returns early, with none left, on `stop`.

    A child that cannot do it leaves them to the caller, who would meet the same error. DeviceError if it was killed, for then
    this process may be next.
    """
    try:
        child = _start(python, names)
    except OSError:
        return
    last = names[0]
    with _ended(child):
        for last in _told(child, stop):
            if last in names:
                begun(last)
    if not stop.is_set() and child.returncode < 0:
        how = f"signal {-child.returncode} ({signal.strsignal(-child.returncode)})"
        raise DeviceError(
            f"the process that compiles CPU kernels was ended by {how} at kernel {last!r}; if memory ran out, free some, "
            "and start again: the kernels before it are kept on disk"
        )


def serve(names: Sequence[str], compile_kernel: Callable[[str], None]) -> None:
    """The child: tell the name of each kernel, then compile it. Nobody listens once its parent has ended: so does it then."""
    for name in names:
        print(name, flush=True)
        compile_kernel(name)


def _start(python: str, names: Sequence[str]) -> subprocess.Popen[bytes]:
    # The parent's path as it is, and nothing from the folder it happens to stand in (-P). A group of its own: Ctrl-C in a
    # terminal is for the parent, which then ends it.
    return subprocess.Popen(
        [python, "-P", "-m", __package__ or "", *names],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )


@contextmanager
def _ended(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever happens in the block, the child is gone after it."""
    try:
        yield
    except BaseException:
        child.kill()
        raise
    finally:
        child.communicate()


def _told(child: subprocess.Popen[bytes], stop: threading.Event) -> Iterator[str]:
    """Its lines until it ends; it is ended on `stop`."""
    assert child.stdout is not None
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while not stop.is_set():
            if not selector.select(POLL_S):
                continue
            more = os.read(child.stdout.fileno(), 1 << 12)
            if not more:
                return
            *lines, text = (text + more).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
    child.kill()
