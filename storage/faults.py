"""A spill file that fails on purpose: errors, short transfers, damaged bytes, a slow disk.

Covers the faults that a disk may have, planned one transfer at a time. It stands between the spill tier and the real file
(storage/container.py), so everything above it runs as it does on a healthy disk. `asynctile stress` trains through it, the
tests of storage/spill.py hold the tier to the table below, and benchmarks use its `rate`.

The table says which faults a tier must survive; storage/spill.py makes it survive them.
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from asynctile.storage.container import ALIGNMENT, RawFile, aligned_array

__all__ = ["FAULTS", "SURVIVED", "SURVIVED_LASTING", "FaultKind", "Faults"]

Direction = Literal["read", "write"]


class FaultKind(NamedTuple):
    """One kind of fault, and how a correct tier reacts to it.

    to: the transfers that it applies to. once, lasting: whether the tier survives one such fault, and whether it survives one
    in every transfer; otherwise a transfer raises TierError.
    """

    to: frozenset[Direction]
    once: bool
    lasting: bool


_READ: frozenset[Direction] = frozenset({"read"})
_WRITE: frozenset[Direction] = frozenset({"write"})

# fmt: off
FAULTS: dict[str, FaultKind] = {
    "eio_read": FaultKind(_READ, once=True, lasting=False),        # a read fails with EIO
    "eio_write": FaultKind(_WRITE, once=True, lasting=False),      # a write fails with EIO
    "enospc": FaultKind(_WRITE, once=False, lasting=False),        # a write fails with ENOSPC
    "short_read": FaultKind(_READ, once=True, lasting=True),       # half is read and reported
    "short_write": FaultKind(_WRITE, once=True, lasting=True),     # half is written and reported
    "torn_write": FaultKind(_WRITE, once=False, lasting=False),    # half is written, all is reported
    "lost_write": FaultKind(_WRITE, once=False, lasting=False),    # nothing is written, all is reported
    "flip_read": FaultKind(_READ, once=True, lasting=False),       # a bit flips on the way from the disk
    "flip_written": FaultKind(_WRITE, once=False, lasting=False),  # a bit flips on the disk
    "slow": FaultKind(_READ | _WRITE, once=True, lasting=True),    # a transfer takes delay_s longer
    "gone": FaultKind(_READ | _WRITE, once=False, lasting=False),  # the file is cut to nothing
}
# fmt: on

#: The kinds after which every tile still reads as it was written: faults that strike once, and lasting faults.
SURVIVED = frozenset(kind for kind, fault in FAULTS.items() if fault.once)
SURVIVED_LASTING = frozenset(kind for kind, fault in FAULTS.items() if fault.lasting)


class Armed(NamedTuple):
    """A planned fault. It meets one transfer of its direction, after `after` others; if `lasting`, also every later one."""

    kind: str
    after: int
    lasting: bool


class Faults:
    """The faults planned for the files that it wraps. Any thread may arm it, at any time.

    seed: selects the bits that flip. delay_s: seconds that "slow" adds. rate: bytes per second that reads and writes share;
    None: as fast as the disk.
    """

    def __init__(self, seed: int = 0, *, delay_s: float = 0.005, rate: int | None = None) -> None:
        self.delay_s = delay_s
        self.rate = rate
        #: The number of transfers that each kind of fault has met.
        self.injected: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._armed: list[Armed] = []
        self._free_at = 0.0
        self._lock = threading.Lock()

    def wrap(self, file: RawFile) -> RawFile:
        """Return `file` with these faults; pass this method as `SpillTier(wrap=...)`."""
        return _FaultyFile(file, self)

    def arm(self, kind: str, after: int = 0, lasting: bool = False) -> None:
        """Plan a fault for the `after`-th matching transfer from now (0: the next one) and, if `lasting`, for all later ones.

        "gone" is always lasting, because bytes that were cut off do not come back.
        """
        with self._lock:
            self._armed.append(Armed(kind, after, lasting or kind == "gone"))

    def disarm(self) -> None:
        """Forget all planned faults; `injected` stays."""
        with self._lock:
            self._armed.clear()

    def due(self, direction: Direction) -> list[str]:
        """Count one transfer, and return the kinds of fault that meet it: perhaps "slow", and at most one other.

        Other faults that were due wait for the next transfer.
        """
        kinds: list[str] = []
        with self._lock:
            later: list[Armed] = []
            for armed in self._armed:
                kind, after, lasting = armed
                if direction not in FAULTS[kind].to:
                    later.append(armed)
                elif after:
                    later.append(Armed(kind, after - 1, lasting))
                elif kind in kinds or (kind != "slow" and set(kinds) - {"slow"}):
                    later.append(armed)
                else:
                    kinds.append(kind)
                    if lasting:
                        later.append(armed)
            self._armed = later
            self.injected.update(kinds)
        return kinds

    def pick(self, count: int) -> int:
        """Return a pseudo-random number below `count`, determined by the seed."""
        with self._lock:
            return self._random.randrange(count)

    def throttle(self, began_s: float, nbytes: int) -> None:
        """Sleep until a disk of `rate` would have finished a transfer that began at `began_s`, behind earlier ones."""
        if self.rate is None:
            return
        with self._lock:
            self._free_at = max(self._free_at, began_s) + nbytes / self.rate
            rest_s = self._free_at - time.monotonic()
        if rest_s > 0:
            time.sleep(rest_s)


class _FaultyFile:
    """A RawFile whose transfers meet the faults that are due."""

    def __init__(self, file: RawFile, faults: Faults) -> None:
        self.path = file.path
        self.direct = file.direct
        self._file = file
        self._faults = faults

    def preadv(self, views: Sequence[np.ndarray], offset: int) -> int:
        began_s = time.monotonic()
        kinds = self._begin("read")
        if "eio_read" in kinds:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if "short_read" in kinds:
            views = self._shortened(views)
        moved = self._file.preadv(views, offset)
        if "flip_read" in kinds and moved:
            self._flip(views, moved)
        self._faults.throttle(began_s, moved)
        return moved

    def pwritev(self, views: Sequence[np.ndarray], offset: int) -> int:
        began_s = time.monotonic()
        kinds = self._begin("write")
        for kind, code in (("eio_write", errno.EIO), ("enospc", errno.ENOSPC)):
            if kind in kinds:
                raise OSError(code, os.strerror(code))
        if "short_write" in kinds:
            views = self._shortened(views)
        moved = nbytes = sum(view.nbytes for view in views)
        if "torn_write" in kinds:
            self._write_all(self._copy(views)[: self._half(nbytes)], offset)
        elif "flip_written" in kinds:
            copy = self._copy(views)  # the caller's bytes stay as they are
            self._flip([copy], nbytes)
            self._write_all(copy, offset)
        elif "lost_write" not in kinds:
            moved = self._file.pwritev(views, offset)
        self._faults.throttle(began_s, moved)
        return moved

    def _begin(self, direction: Direction) -> list[str]:
        kinds = self._faults.due(direction)
        if "slow" in kinds:
            time.sleep(self._faults.delay_s)
        if "gone" in kinds:
            self._file.truncate(0)
        return kinds

    def _half(self, nbytes: int) -> int:
        """Return about half of `nbytes`, where a transfer may stop: without the page cache, a multiple of the alignment."""
        return nbytes // 2 // ALIGNMENT * ALIGNMENT if self.direct else nbytes // 2

    def _shortened(self, views: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the first half of `views`, or all of them if the half would be empty."""
        rest = self._half(sum(view.nbytes for view in views))
        if not rest:
            return views
        short = []
        for view in views:
            if rest:
                short.append(view[:rest])
            rest -= min(rest, view.nbytes)
        return short

    def _copy(self, views: Sequence[np.ndarray]) -> np.ndarray:
        copy = aligned_array(sum(view.nbytes for view in views))
        np.concatenate(views, out=copy)
        return copy

    def _flip(self, views: Sequence[np.ndarray], nbytes: int) -> None:
        """Flip one bit of the first `nbytes` of `views`."""
        bit = self._faults.pick(nbytes * 8)
        place = bit // 8
        for view in views:
            if place < view.nbytes:
                view[place] ^= np.uint8(1 << bit % 8)
                return
            place -= view.nbytes

    def _write_all(self, view: np.ndarray, offset: int) -> None:
        """Write all of `view`: a short write here would make another fault than the planned one."""
        while view.nbytes:
            moved = self._file.pwritev([view], offset)
            view, offset = view[moved:], offset + moved

    def allocate(self, nbytes: int) -> None:
        self._file.allocate(nbytes)

    def truncate(self, nbytes: int) -> None:
        self._file.truncate(nbytes)

    def close(self) -> None:
        self._file.close()
