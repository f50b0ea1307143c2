"""Conditions of a process that are no file's fault: little memory, a full disk, a closed stdout, a signal.

Covers the conditions and how a child enters them. verdict.py judges the outcome as any other.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["SURROUNDINGS", "Conditions", "without_rights"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
#: from <linux/capability.h>: the capabilities to read and write despite file permissions
_VERSION_3, _OVERRIDE = 0x20080522, (1 << 1) | (1 << 2)


@dataclass(frozen=True)
class Conditions:
    """The conditions of one command. enter: called in the child before anything else. signals: (seconds, number), sent to it.
    """

    enter: Callable[[], None] = field(default=lambda: None)
    signals: tuple[tuple[float, int], ...] = ()


def _limited(kind: int, most: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (most, most))


def little_address_space(chance: random.Random) -> Conditions:
    """Limit the address space to 256 MiB to 60 GiB more than at the start, as `ulimit -v` does."""
    more = chance.choice((256 << 20, 512 << 20, 1 << 30, 4 << 30, 60 << 30))

    def enter() -> None:
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * _PAGE
        resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))

    return Conditions(enter)


def small_files(chance: random.Random) -> Conditions:
    """Make a write fail in the middle of a file, as on a full disk."""
    return Conditions(_limited(resource.RLIMIT_FSIZE, chance.choice((0, chance.randrange(2_000), chance.randrange(100_000)))))


def few_descriptors(chance: random.Random) -> Conditions:
    return Conditions(_limited(resource.RLIMIT_NOFILE, chance.randrange(8, 128)))


def closed_stdout(chance: random.Random) -> Conditions:
    """Close stdout from the start, as `>&-` does: the interpreter then has none."""

    def enter() -> None:
        os.close(1)
        sys.stdout = None

    return Conditions(enter)


def left_stdout(chance: random.Random) -> Conditions:
    """Make stdout a pipe whose reader is gone, as after `| head`."""

    def enter() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
        os.close(writer)

    return Conditions(enter)


def full_stdout(chance: random.Random) -> Conditions:
    def enter() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

    return Conditions(enter)


def closed_stdin(chance: random.Random) -> Conditions:
    return Conditions(lambda: os.close(0))


def _signalled(*numbers: int) -> Callable[[random.Random], Conditions]:
    """Send a signal at any moment, also before the first step and after the last."""
    return lambda chance: Conditions(signals=((chance.uniform(0, 0.8), chance.choice(numbers)),))


SURROUNDINGS: dict[str, Callable[[random.Random], Conditions]] = {
    "little address space": little_address_space, "disk full": small_files, "few descriptors": few_descriptors,
    "stdout closed": closed_stdout, "stdout left": left_stdout, "stdout full": full_stdout, "stdin closed": closed_stdin,
    "SIGHUP": _signalled(signal.SIGHUP), "SIGTERM, SIGINT": _signalled(signal.SIGTERM, signal.SIGINT),
}  # fmt: skip


def without_rights() -> None:
    """Give up the rights by which root reads and writes everything; no effect on others. OSError if the system refuses."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable sets of 32 capabilities each, twice
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capget(header, sets) == 0:
        for i in range(3):
            sets[i] &= ~_OVERRIDE
        if libc.capset(header, sets) == 0:
            return
    raise OSError(ctypes.get_errno(), "capset failed")
