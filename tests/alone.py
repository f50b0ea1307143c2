"""What several processes that test side by side would each make, made by one of them."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time is inside, by a lock on this file; whoever comes later finds what was made."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
