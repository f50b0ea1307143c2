"""A lock for test processes that run side by side: one of them makes a shared thing, the others find it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Let one process at a time inside, by a lock on this file; a later process finds what the first one made."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
