"""Leaks of a closed engine: tasks, threads, file descriptors, spill files, bytes in tiers, and limits that it leaves behind.

Covers counting before and after. Nothing is cleaned up here: every leak is a finding.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from asynctile import Engine
from asynctile.blas_threads import holders
from asynctile.cli.stress.finding import Finding

__all__ = ["Held", "expect_empty"]

_DESCRIPTORS = "/proc/self/fd"


@dataclass(frozen=True)
class Held:
    """The resources that the process holds at one moment."""

    tasks: frozenset[asyncio.Task[object]]
    threads: frozenset[threading.Thread]
    descriptors: frozenset[str]
    files: frozenset[str]
    blas_holders: int

    @classmethod
    def now(cls, spill: Path) -> Self:
        """Return the resources held now. Called on the loop that the engine was opened from; `spill` may not exist."""
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("asynctile")]
        files = os.listdir(spill) if spill.is_dir() else []
        return cls(frozenset(asyncio.all_tasks()), frozenset(threads), _descriptors(), frozenset(files), holders())

    def expect_no_more(self, spill: Path) -> None:
        """Raise Finding if the process holds anything now that it did not hold then."""
        now = self.now(spill)
        left = [
            *_named("task", (task.get_name() for task in now.tasks - self.tasks)),
            *_named("thread", (thread.name for thread in now.threads - self.threads)),
            *_named("file descriptor", now.descriptors - self.descriptors),
            *_named(f"file in {spill}", now.files - self.files),
            *(["BLAS at one thread"] if now.blas_holders > self.blas_holders else []),
        ]
        if left:
            raise Finding("leaked", f"a closed engine left {', '.join(left)}")


def expect_empty(engine: Engine) -> None:
    """Raise Finding if tiers still hold bytes after all tiles were released."""
    now = engine.statistics()
    used = {"the device": now.device_used_bytes, "RAM": now.host_used_bytes, "the spill file": now.spill_used_bytes}
    left = [f"{nbytes} bytes of {tier}" for tier, nbytes in used.items() if nbytes]
    if left:
        raise Finding("leaked", f"every tile was released, but {', '.join(left)} are still in use")


def _descriptors() -> frozenset[str]:
    """Return open descriptors as "number -> target"."""
    found = []
    for number in os.listdir(_DESCRIPTORS):
        with suppress(FileNotFoundError):  # the descriptor that listed them
            found.append(f"{number} -> {os.readlink(f'{_DESCRIPTORS}/{number}')}")
    return frozenset(found)


def _named(what: str, names: Iterable[str]) -> list[str]:
    return [f"{what} {name}" for name in sorted(names)]
