"""A line over NCCL: headers travel over a socket, and the bytes of pieces from GPU to GPU, in one direction.

NCCL's kernels occupy the GPU while they wait for the other node, and a call of CUDA that waits for all kernels waits with them.
So a piece begins only when both sides are ready:

    sender                                     receiver
    header                          ->         waits until the tile has a place
                                               begins to receive
    waits                           <-         READY
    begins to send
    waits                           <-         DONE, once it has the bytes

A kernel that receives still waits for the other host to begin. If both hosts are then inside calls that wait for all kernels,
they wait for each other until the watchdog ends the run. CUDA makes such calls when it loads a kernel at its first use, so
`NcclExchange.meet` asks it to load all when it starts. A kernel that sends may end before the bytes have left, and an abort
loses them. Hence DONE.

The kernels read and write RAM that is locked, at its own address. Other RAM goes through a locked block of the line.

NCCL frees a communicator in two ways. `destroy` waits for the other node, which may be gone, so it is never called. `abort`
lets the kernels end, and then waits until no kernel of NCCL runs on the GPU. Those of other communicators end only by an abort
of their own. So each communicator has a thread that waits to abort it.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.device.cuda_memory import PinnedMemory
from asynctile.device.driver import Driver
from asynctile.nodes.boxes import Track
from asynctile.nodes.wire import PIECE_NBYTES, Deadline, PieceHeader, keep_alive, read, read_piece, send_header
from asynctile.threads import start

logger = logging.getLogger(__name__)

#: Bytes of the identity of a communicator, which the sender makes.
IDENTITY_NBYTES = 128
#: The ranks of both sides.
SENDER, RECEIVER = 0, 1
READY, DONE = b"r", b"d"
#: Pieces of each direction that a GPU moves at once. Kernels that find no room on the GPU would wait for one another.
AT_ONCE = 2
#: Seconds after which a communicator is aborted though a thread is inside NCCL, and after which `close` leaves it behind.
CALL_S, LAST_S = 2.0, 10.0


class Admission:
    """What all lines of a GPU share. calling: held during calls of NCCL, which allows one thread at a time for each GPU.

    sending, receiving: entered by lines that move a piece. A line that sends has a receiver that has begun, so it ends soon;
    and a line that receives waits for one that sends. So nobody waits in a circle.
    """

    def __init__(self) -> None:
        self.calling = threading.Lock()
        self.sending, self.receiving = threading.Semaphore(AT_ONCE), threading.Semaphore(AT_ONCE)


class NcclLine:
    """A line over `connection`, which sends or receives.

    track: of its tiles. driver: the GPU. library: the result of `load`. name: for messages.
    """

    def __init__(
        self, name: str, connection: socket.socket, track: Track, sends: bool, driver: Driver, library: Any,
        admission: Admission,
    ) -> None:  # fmt: skip
        self.name = name
        self.track = track
        self.sends, self.receives = sends, not sends
        self._connection = connection
        self._driver = driver
        self._library = library
        self._admission = admission
        self._turns = admission.sending if sends else admission.receiving
        self._communicator: Any = None
        #: (PIECE_NBYTES,) of locked RAM
        self._block: NDArray[np.uint8] | None = None
        self._stream = self._event = 0
        #: held by the thread that is inside NCCL, and by the one that takes the communicator to abort it
        self._using, self._taking = threading.Lock(), threading.Lock()
        self._is_over = threading.Event()
        self._aborting = threading.Thread(target=self._wait_to_abort, name="asynctile-nccl-abort", daemon=True)

    def connect(self, deadline: Deadline) -> None:
        """Make the communicator together with the other node, and move one byte. OSError if that fails.

        deadline: for the words over the socket. NCCL itself may wait for ever.
        """
        keep_alive(self._connection)
        self._driver.bind()
        self._block = np.ndarray((PIECE_NBYTES,), np.uint8, PinnedMemory(self._driver).block(PIECE_NBYTES))
        self._stream, self._event = self._driver.new_stream(), self._driver.new_event()
        start(self._aborting)
        with self._in_words():
            if self.sends:
                identity = self._library.get_unique_id()
                self._connection.sendall(identity)
            else:
                identity = read(self._connection, IDENTITY_NBYTES, deadline)
            self._communicator = self._library.NcclCommunicator(2, identity, SENDER if self.sends else RECEIVER)
            if self._is_over.is_set():
                self._abort()  # the thread may have seen no communicator
            self._begin(self._block[:1])
            self._await()
        self._connection.settimeout(None)

    def send(self, piece: PieceHeader, view: memoryview) -> None:
        send_header(self._connection, piece)
        read(self._connection, len(READY))
        with self._turns, self._in_words():
            piece_bytes = np.frombuffer(view, np.uint8)
            there = self._reached(piece_bytes)
            if there is not piece_bytes:
                there[:] = piece_bytes
            self._begin(there)
            self._await()
        read(self._connection, len(DONE))

    def header(self) -> PieceHeader:
        return read_piece(self._connection)

    def receive(self, view: memoryview) -> None:
        with self._turns, self._in_words():
            piece_bytes = np.frombuffer(view, np.uint8)
            there = self._reached(piece_bytes)
            self._begin(there)
            try:
                self._connection.sendall(READY)
            except OSError:
                self.shut()  # else the kernel would wait for ever
                raise
            finally:
                self._await()
            if there is not piece_bytes:
                piece_bytes[:] = there
        self._connection.sendall(DONE)

    def check(self) -> None:
        """Raise ConnectionError for an error that NCCL met behind its kernels, such as one of the network."""
        if not self._using.acquire(blocking=False):
            return
        try:
            if not self._is_over.is_set():
                with self._in_words():
                    self._communicator.check_async_error()
        finally:
            self._using.release()

    def shut(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._is_over.set()

    def close(self) -> None:
        self.shut()
        self._connection.close()
        if self._aborting.ident is not None:
            self._aborting.join(LAST_S)
            if self._aborting.is_alive():
                logger.warning("NCCL does not let go of %s: it is left behind, with its memory on the GPU", self.name)
                return
        self._driver.bind()
        if self._stream:
            self._driver.destroy_stream(self._stream)
            self._driver.destroy_event(self._event)
            self._stream = 0
        self._block = None

    def _reached(self, wanted: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return these bytes if the GPU reaches them, else as many of the line's block."""
        if self._driver.is_pinned(wanted.ctypes.data):
            return wanted
        assert self._block is not None
        return self._block[: len(wanted)]

    def _begin(self, moved: NDArray[np.uint8]) -> None:
        """Enqueue the move of bytes that the GPU reaches. ConnectionAbortedError after `shut`."""
        self._driver.bind()
        with self._using, self._admission.calling:
            if self._is_over.is_set():  # perhaps while this waited for another line that hung
                raise ConnectionAbortedError
            move = self._communicator.send if self.sends else self._communicator.recv
            move(moved.ctypes.data, len(moved), self._library.NCCL_UINT8, RECEIVER if self.sends else SENDER, self._stream)
            self._driver.record(self._event, self._stream)

    def _await(self) -> None:
        """Wait until what was begun is over. ConnectionAbortedError if `shut` has ended it."""
        self._driver.synchronize(self._event)
        if self._is_over.is_set():
            raise ConnectionAbortedError

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Turn errors of NCCL and of the GPU into ConnectionErrors."""
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            if self._is_over.is_set():
                raise ConnectionAbortedError from error
            raise ConnectionError(f"NCCL failed: {error}") from error

    def _wait_to_abort(self) -> None:
        self._is_over.wait()
        self._abort()

    def _abort(self) -> None:
        """Abort the communicator, if there is one that no other thread has taken to abort it."""
        # A thread that hangs inside NCCL comes back only once its communicator is aborted.
        is_free = self._using.acquire(timeout=CALL_S)
        try:
            with self._taking:
                taken, self._communicator = self._communicator, None
            if taken is not None:
                self._driver.bind()
                taken.abort()
        finally:
            if is_free:
                self._using.release()
