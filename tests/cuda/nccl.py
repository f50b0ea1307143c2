"""The part of `cupy.cuda.nccl` that asynctile/nccl uses, for the GPUs of a SoftNode, each of which stands for a machine.

A send and its receive are work of two streams. A receive occupies its stream until the bytes are there. A send ends as soon as
it has taken its bytes, as over a network, and an abort loses bytes that were not received. What NCCL leaves undefined is an
error here, such as two threads at once, two aborts, sizes that differ, or RAM that is not locked.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.cuda.node import SoftNode
from tests.cuda.stream import SoftStream
from tests.settle import HANG_S


class NcclError(RuntimeError):
    """An error as CuPy raises it."""


class SoftKernel:
    """The send or receive of `count` bytes at an address."""

    def __init__(self, communicator: SoftCommunicator, address: int, count: int) -> None:
        self.communicator, self.address, self.count = communicator, address, count
        self.taken = b""


class SoftCommunicator:
    """A communicator of one rank; making it waits for the other ranks. comm: 0 once it was freed. fault: what goes wrong behind
    the kernels, for `check_async_error`.
    """

    def __init__(self, nccl: SoftNccl, ndev: int, commId: bytes, rank: int, config: Any = None) -> None:
        if not isinstance(commId, bytes) or len(commId) != 128:
            raise ValueError("commId length")
        if nccl.refuses is not None:
            raise nccl.refuses
        self.nccl, self.rank, self.device = nccl, rank, nccl.node.current()
        self.comm, self.is_aborted, self.fault = 1, False, None
        with nccl.changed:
            self.group = nccl.groups[commId]
            if rank in self.group or not 0 <= rank < ndev:
                raise NcclError("NCCL_ERROR_INVALID_USAGE: invalid usage")
            if self.device in [other.device for other in self.group.values()]:
                raise NcclError("NCCL_ERROR_INVALID_USAGE: Duplicate GPU detected")
            self.group[rank] = self
            self.sent = nccl.sent[commId]
            nccl.made.append(self)
            nccl.changed.notify_all()
            assert nccl.changed.wait_for(lambda: len(self.group) == ndev, HANG_S)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        kernel = self._kernel(sendbuf, count, datatype, peer)
        queue = self.sent[self.rank, peer]

        def run() -> None:
            kernel.taken = ctypes.string_at(sendbuf, count)
            queue.append(kernel)
            self.nccl.changed.notify_all()

        self._launch("send", stream, kernel, run)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        kernel = self._kernel(recvbuf, count, datatype, peer)
        queue = self.sent[peer, self.rank]

        def run() -> None:
            self.nccl.changed.wait_for(lambda: self.is_aborted or (
                queue and self.nccl.delivers and not queue[0].communicator.is_aborted))
            if self.is_aborted:
                return
            sent = queue.popleft()
            assert sent.count == kernel.count, f"{sent.count} bytes are sent and {kernel.count} expected"
            ctypes.memmove(kernel.address, sent.taken, kernel.count)

        self._launch("recv", stream, kernel, run)

    def abort(self) -> None:
        """Let this rank's kernels end, and free the communicator once no kernel of NCCL runs on the GPU."""
        with self.nccl.changed:
            self.nccl.misused += self.is_aborted
            assert not self.is_aborted, "a communicator is aborted twice"
            self.is_aborted = True
            self.nccl.changed.notify_all()
            free = partial(self.nccl.is_idle, self.device)
            assert self.nccl.changed.wait_for(free, HANG_S), "kernels of other communicators still run"
            self.comm = 0

    def destroy(self) -> None:
        if self.comm:
            self.nccl.destroyed += 1
            self.comm = 0

    def __del__(self) -> None:
        if hasattr(self, "comm"):
            self.destroy()

    def check_async_error(self) -> None:
        if not self.comm:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: invalid argument")
        if self.fault is not None:
            raise self.fault

    def _kernel(self, address: int, count: int, datatype: int, peer: int) -> SoftKernel:
        assert all(type(value) is int for value in (address, count, datatype, peer)) and datatype == SoftNccl.NCCL_UINT8
        assert self.nccl.node.is_pinned(address, count), "a GPU reads and writes locked RAM alone"
        self.nccl.misused += self.is_aborted
        if not self.comm or peer not in self.group or peer == self.rank:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: invalid argument")
        return SoftKernel(self, address, count)

    def _launch(self, kind: str, stream: int, kernel: SoftKernel, run: Callable[[], None]) -> None:
        nccl, key = self.nccl, (self.device, kind)
        nccl.node.check_current(self.device)
        assert nccl.calling[self.device].acquire(blocking=False), "two threads call NCCL for one GPU at once"

        def occupies() -> None:
            with nccl.changed:
                try:
                    run()
                finally:
                    nccl.running[key] -= 1
                    nccl.changed.notify_all()

        with nccl.changed:
            nccl.launched[id(self.group), kind] += 1
            nccl.early += kind == "send" and nccl.launched[id(self.group), "recv"] < nccl.launched[id(self.group), "send"]
            nccl.running[key] += 1
            nccl.most[key] = max(nccl.most[key], nccl.running[key])
            if nccl.loses(self, kind):
                occupies = nccl.lost(self, key)
        try:
            nccl.stream(self.device, stream).put(occupies)
        finally:
            nccl.calling[self.device].release()


class SoftNccl:
    """The module. made: every communicator. destroyed: how many were freed by `destroy`, of which none should be. misused:
    calls of communicators that were being freed, likewise.

    launched: kernels of each group, sends and receives apart. early: sends that were launched before their receive.
    running, most: kernels on each GPU, sends and receives apart, now and at most. refuses: the error of every new communicator.
    delivers: whether bytes arrive now. loses: whether the bytes of a communicator's kernel of this kind never leave, as on a
    network that is gone.
    """

    available = True
    NCCL_UINT8 = 1

    def __init__(self, node: SoftNode) -> None:
        self.node = node
        self.changed = threading.Condition()
        self.groups: dict[bytes, dict[int, SoftCommunicator]] = defaultdict(dict)
        #: sends that have begun, of each group, by the ranks of sender and receiver
        self.sent: dict[bytes, dict[tuple[int, int], deque[SoftKernel]]] = defaultdict(lambda: defaultdict(deque))
        self.made: list[SoftCommunicator] = []
        self.destroyed = self.misused = 0
        self.running: Counter[tuple[int, str]] = Counter()
        self.most: Counter[tuple[int, str]] = Counter()
        self.launched: Counter[tuple[int, str]] = Counter()
        self.early = 0
        self.delivers = True
        self.calling: dict[int, threading.Lock] = defaultdict(threading.Lock)
        self.refuses: Exception | None = None
        self.loses: Callable[[SoftCommunicator, str], bool] = lambda communicator, kind: False
        self.NcclCommunicator = partial(SoftCommunicator, self)

    def get_version(self) -> int:
        return 22707

    def get_unique_id(self) -> bytes:
        return os.urandom(128)

    def is_idle(self, device: int) -> bool:
        """Return whether no kernel of NCCL runs on a GPU."""
        return not self.running[device, "send"] and not self.running[device, "recv"]

    def stream(self, device: int, handle: int) -> SoftStream:
        return next(one.streams[handle] for one in self.node.drivers() if one.index == device and handle in one.streams)

    def lost(self, communicator: SoftCommunicator, key: tuple[int, str]) -> Callable[[], None]:
        """Return a kernel that occupies its GPU until the communicator is aborted."""

        def occupies() -> None:
            with self.changed:
                self.changed.wait_for(lambda: communicator.is_aborted)
                self.running[key] -= 1
                self.changed.notify_all()

        return occupies
