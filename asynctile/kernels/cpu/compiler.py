"""A child process that compiles kernels into Numba's cache on disk, so that this process only loads them.

Compiling takes seconds, much of it in Python, which would delay a service's event loop. It also cannot be interrupted within a
process, while a child process can be ended. This file covers both ends; the child starts in __main__.py, and jit.py knows which
kernels are missing.
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

#: The longest time in seconds until the child ends after `stop` is set.
POLL_S = 0.05


def compile_apart(python: str, names: Sequence[str], begun: Callable[[str], None], stop: threading.Event) -> None:
    """Let a child compile these kernels into the cache; begun(name) is called before each.

    Returns early on `stop`, with no child left. A child that fails leaves its kernels to the caller, who would meet the same
    error. Raises DeviceError if the child was killed, because this process may be killed next.
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
            f"the process that compiles CPU kernels was ended by {how} at kernel {last!r}; if memory ran out, free some "
            "and start again: the kernels compiled before it are kept on disk"
        )


def serve(names: Sequence[str], compile_kernel: Callable[[str], None]) -> None:
    """Run the child: print the name of each kernel, then compile it.

    When its parent has ended, nobody reads the pipe, so the print fails and the child ends too.
    """
    for name in names:
        print(name, flush=True)
        compile_kernel(name)


def _start(python: str, names: Sequence[str]) -> subprocess.Popen[bytes]:
    # The child gets the parent's path unchanged, and nothing from its working folder (-P). It has a process group of its own,
    # so that Ctrl-C in a terminal reaches the parent alone, which then ends the child.
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
    """Ensure that the child is gone after the block."""
    try:
        yield
    except BaseException:
        child.kill()
        raise
    finally:
        child.communicate()


def _told(child: subprocess.Popen[bytes], stop: threading.Event) -> Iterator[str]:
    """Yield the child's lines until it ends. On `stop` the child is killed."""
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
