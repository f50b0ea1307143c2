"""The spill tier: tiles that fit neither on the device nor in RAM, in one file on NVMe.

Covers the blocking side: reading and writing whole tiles from worker threads, with retries for transient errors, checksums for
errors that the disk does not report, and counters. The engine decides which thread calls when, storage/ledger.py which tile
comes here, storage/blocks.py where in the file it goes. System calls are storage/container.py, and a part of the file with
blocks of its own is storage/region.py.

Nothing is copied on the way: the disk writes into the caller's aligned memory. Nothing here outlives the process, so there is
no fsync. What must last is in a checkpoint, which also restores what this tier loses; hence the way out in each message.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from xxhash import xxh3_64_intdigest

from asynctile.storage.blocks import Block, Blocks
from asynctile.storage.container import ALIGNMENT, ContainerFile, RawFile, free_nbytes
from asynctile.storage.errors import TierError
from asynctile.storage.sizes import format_size

__all__ = ["SpillTier"]

#: Errors that may go away when the same transfer is tried again.
_TRANSIENT = frozenset({errno.EIO, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY})
#: Seconds before the second, third and fourth try of a transfer.
PAUSES_S = (0.001, 0.01, 0.1)
#: How often bytes that fail their checksum are read again: a bit may have flipped in transfer; one on the disk stays flipped.
_READ_AGAIN = 2
logger = logging.getLogger(__name__)

_WAY_OUT = "look at the disk, then try again or load the last checkpoint"


class SpillTier:
    """Tiles in a file in `folder`, at most `limit` bytes (None: as much as the disk has).

    Any thread may call `read` and `write`; only one thread, the engine's loop, may call `reserve`, `take`, `give`, `cut` and
    `join`. wrap: puts a layer between the tier and its file (storage/faults.py). mended: called in the transferring thread
    after a transfer that succeeded only by retrying, with a sentence, and with whether its bytes had failed their checksum.
    """

    #: The tier's name in messages.
    name = "spill"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        limit: int | None = None,
        wrap: Callable[[RawFile], RawFile] | None = None,
    ) -> None:
        self.folder = os.fspath(folder)
        self.limit = limit
        self.direct = False
        #: Bytes of tiles that were read or written completely, without failed tries and repeats.
        self.read_nbytes = 0
        self.written_nbytes = 0
        #: Transfers that were repeated after an error or a wrong checksum, and then succeeded.
        self.retries = 0
        self.mended: Callable[[str, bool], object] = _unheard
        self._wrap = wrap
        self._blocks = Blocks(limit, ALIGNMENT)
        self._allocated_nbytes = 0
        #: the offset in the file at which its blocks begin
        self._start = 0
        self._file: RawFile | None = None
        #: Guards the counters, `_file` and `_in_flight`.
        self._lock = threading.Condition()
        self._in_flight = 0
        self._left_open: RawFile | None = None
        #: Once set, pauses between tries end at once.
        self._closing = threading.Event()

    @property
    def used_nbytes(self) -> int:
        return self._blocks.used_nbytes

    @property
    def peak_nbytes(self) -> int:
        return self._blocks.peak_nbytes

    @property
    def room_nbytes(self) -> int:
        """The most bytes that tiles may take: the limit or, without one, the bytes they use plus what is free on the disk."""
        if self._blocks.cap is not None:
            return self._blocks.cap
        return self.used_nbytes + free_nbytes(self.folder)

    def open(self) -> None:
        """Lock the folder and make the file, with disk space for all of `limit`. Blocking. TierError if that fails."""
        if self._file is not None or self._closing.is_set():
            raise TierError(f"the spill tier in {self.folder} was already opened; make another one")
        file: RawFile = ContainerFile(self.folder)
        try:
            if self._wrap is not None:
                file = self._wrap(file)
            if self._blocks.cap is not None:
                file.allocate(self._blocks.cap)
                self._allocated_nbytes = self._blocks.cap
        except BaseException:
            file.close()
            raise
        self.direct = file.direct
        with self._lock:
            if not self._closing.is_set():
                self._file = file
                return
        file.close()  # `close` was called during `open`

    def close(self, patience_s: float | None = None) -> None:
        """Wait for running transfers, refuse new ones, and close the file. Blocking; closing twice is fine.

        If transfers still hang after `patience_s` seconds, the file stays open until the last of them ends: the system could
        give a closed descriptor to another file before a running transfer uses it.
        """
        self._closing.set()
        with self._lock:
            file, self._file = self._file, None
            if not self._lock.wait_for(lambda: not self._in_flight, patience_s):
                self._left_open = file  # the last transfer closes it, should it ever end
                return
        if file is not None:
            file.close()

    def reserve(self, counts: Mapping[int, int]) -> None:
        """Make sure that so many blocks of each size, {nbytes: count}, can be taken, with disk space behind them.

        Nothing may be in flight. BudgetError if `limit` is too small, TierError if the disk is too full.
        """
        before = self._blocks.state()
        self._blocks.reserve(counts)
        try:
            self._grow(self._blocks.end)
        except BaseException:
            self._blocks.restore(before)
            raise

    def take(self, nbytes: int, what: str) -> Block:
        """Take a block of at least `nbytes` for `what`; BudgetError when `limit` is reached. Quick after `reserve`."""
        return self._backed(self._blocks.take(nbytes, what), self._blocks.give)

    def give(self, block: Block) -> None:
        self._blocks.give(block)

    def cut(self, nbytes: int, what: str) -> Block:
        """Take a block that was neither given back nor reserved, for an owner that cuts it further; BudgetError as `take`."""
        return self._backed(self._blocks.cut(nbytes, what), self._blocks.join)

    def join(self, block: Block) -> None:
        """Take back a block from `cut`. Nothing in it may be in flight."""
        self._blocks.join(block)

    def _backed(self, block: Block, undo: Callable[[Block], None]) -> Block:
        """Return `block` with disk space behind it; if there is none, undo it and raise."""
        try:
            self._grow(block.offset + block.nbytes)
        except BaseException:
            undo(block)
            raise
        return block

    def _grow(self, nbytes: int) -> None:
        if nbytes <= self._allocated_nbytes:
            return
        if self._file is None:
            raise self._not_open("a reservation")
        self._file.allocate(nbytes)
        self._allocated_nbytes = nbytes

    def write(self, block: Block, view: np.ndarray, name: str) -> None:
        """Write `view` at the start of `block`, for tile `name`. Blocking, any thread; `view` must not change meanwhile.

        view: 1-D uint8, its address and length multiples of 4096. TierError if the disk fails; the block is then unreadable.
        """
        _check(block, view, name)
        with self._using_file(name) as file:
            block.checksum = None
            checksum = xxh3_64_intdigest(view.data)
            retries = self._move(file.pwritev, "write", file, block, view, name)
            block.checksum = checksum
        with self._lock:
            self.written_nbytes += view.nbytes
            self.retries += retries
        if retries:
            self._was_mended(name, "written", retries, False)

    def read(self, block: Block, view: np.ndarray, name: str) -> None:
        """Fill `view`, as long as the view that was written, from `block`, for tile `name`. Blocking, any thread.

        TierError if the disk does not return the bytes that were written; the content of `view` is then undefined.
        """
        _check(block, view, name)
        with self._using_file(name) as file:
            if block.checksum is None:
                raise self._error(name, "read", block, view, "no complete write is stored there")
            retries = again = 0
            for again in range(_READ_AGAIN + 1):
                retries += self._move(file.preadv, "read", file, block, view, name)
                found = xxh3_64_intdigest(view.data)
                if found == block.checksum:
                    break
                if again == _READ_AGAIN:
                    why = f"its checksum is {found:016x}, but {block.checksum:016x} was written; read {again + 1} times"
                    raise self._error(name, "read", block, view, why)
                retries += 1
        with self._lock:
            self.read_nbytes += view.nbytes
            self.retries += retries
        if retries:
            self._was_mended(name, "read", retries, again > 0)

    def _move(
        self, transfer: Callable[[Sequence[np.ndarray], int], int], verb: str, file: RawFile, block: Block, view: np.ndarray,
        name: str,
    ) -> int:  # fmt: skip
        """Transfer all of `view`, in as many parts as the kernel needs; return the number of retries."""
        done = retries = 0
        while done < view.nbytes:
            try:
                moved = transfer([view[done:]], self._start + block.offset + done)
                if not moved and verb == "read":
                    raise OSError(errno.ENODATA, f"the file ends after {done} bytes of the tile; something truncated it")
                if file.direct:
                    moved -= moved % ALIGNMENT  # keeps the next part aligned; a few bytes move twice
                if not moved:
                    raise OSError(errno.EAGAIN, "no bytes were moved")
                done += moved
            except OSError as error:
                if error.errno not in _TRANSIENT or retries == len(PAUSES_S):
                    why = f"{error.strerror or error}" + (f"; tried {retries + 1} times" if retries else "")
                    raise self._error(name, verb, block, view, why) from error
                if self._closing.wait(PAUSES_S[retries]):
                    raise self._not_open(f"tile {name}") from error
                retries += 1
        return retries

    def _was_mended(self, name: str, done: str, retries: int, was_damaged: bool) -> None:
        why = "bytes that did not match their checksum" if was_damaged else "transient errors"
        text = f"tile {name} was {done} on try {retries + 1}, after {why}; spill file in {self.folder}"
        logger.warning("%s", text)
        self.mended(text, was_damaged)

    @contextmanager
    def _using_file(self, name: str) -> Iterator[RawFile]:
        with self._lock:
            if self._file is None:
                raise self._not_open(f"tile {name}")
            file = self._file
            self._in_flight += 1
        try:
            yield file
        finally:
            with self._lock:
                self._in_flight -= 1
                if not self._in_flight:
                    self._lock.notify_all()
                    if self._left_open is not None:
                        self._left_open.close()

    def _error(self, name: str, verb: str, block: Block, view: np.ndarray, why: str) -> TierError:
        return TierError(
            f"tile {name}: cannot {verb} {format_size(view.nbytes)} in the spill tier, spill file in {self.folder}, "
            f"offset {block.offset}: {why}; {_WAY_OUT}"
        )

    def _not_open(self, what: str) -> TierError:
        state = "closed" if self._closing.is_set() else "not open yet"
        return TierError(f"{what} needs the spill tier in {self.folder}, which is {state}; open another engine")


def _check(block: Block, view: np.ndarray, name: str) -> None:
    """Raise ValueError for a view that O_DIRECT would refuse, with nothing but EINVAL as its reason."""
    address = view.__array_interface__["data"][0]
    if view.ndim != 1 or view.dtype != np.uint8 or not view.flags.c_contiguous:
        fault = f"a view of shape {view.shape} and type {view.dtype}; expected contiguous bytes in one dimension"
    elif not 0 < view.nbytes <= block.nbytes or view.nbytes % ALIGNMENT or address % ALIGNMENT:
        fault = (
            f"{view.nbytes} bytes at address {address:#x} for a block of {block.nbytes}; expected an address and a length that "
            f"are multiples of {ALIGNMENT}, and at most the block"
        )
    else:
        return
    raise ValueError(f"tile {name} was given {fault}")


def _unheard(text: str, was_damaged: bool) -> None:
    """Ignore the report: the default of `mended`."""
