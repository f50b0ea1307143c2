"""The transfers between this node and another one: `Outbox` and `Inbox`, each shared by the threads of several connections.

Temporary and persistent tiles have an outbox and an inbox each (`Track`). Transfers of each are numbered, and both nodes count
alike. They go out in the order of their numbers, whatever the order in which they become ready. So the transfer that the other
node needs first never waits behind another one. A tile is received into its own bytes; nothing is buffered here.

The way not taken: one order for all tiles. An updated weight waits for the sums of both nodes, and behind it waited the sums of
the next weight. So each weight cost a journey to the other node and back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntEnum

from asynctile.errors import NodeError
from asynctile.nodes.precedence import Precedence
from asynctile.nodes.wire import PIECE_NBYTES, PieceHeader

#: Called once when a transfer is over, with its error or None.
Told = Callable[[NodeError | None], None]


class Track(IntEnum):
    """The kinds of tiles that transfers carry. Those of one track keep an order; tracks do not wait for each other."""

    TEMPORARY = 0
    PERSISTENT = 1


class Moving:
    """A transfer under way. what: its tile, for messages. left: bytes that are not over. held: pieces that threads work on."""

    __slots__ = ("held", "left", "number", "told", "view", "what")

    def __init__(self, number: int, view: memoryview, told: Told, what: object) -> None:
        self.number = number
        self.what = what
        self.view = view
        self.told = told
        self.left = len(view)
        self.held = 0


class _Box:
    """The transfers of one direction. Threads take pieces, and put them back when they are done with them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._moving: dict[int, Moving] = {}
        self._failure: NodeError | None = None
        #: numbers of the present run: from `base` up to before `end`
        self._base = self._end = 0

    def begin(self, count: int) -> None:
        """Begin a run of `count` transfers. Those of the run before that were never added are dropped, on both sides."""
        with self._changed:
            if self._moving:
                raise RuntimeError(f"{len(self._moving)} transfers of the last run are under way; wait for them first")
            self._base, self._end = self._end, self._end + count
            self._rewind(self._base)

    def add(self, index: int, view: memoryview, told: Told, what: object = "bytes") -> None:
        """Add the transfer of this index in its run. told: see Told; it must not raise. what: the tile, for messages."""
        with self._changed:
            number, failure = self._base + index, self._failure
            if not 0 <= index < self._end - self._base or number in self._moving:
                raise ValueError(f"transfer {index} is not one of the {self._end - self._base} of this run, or was added "
                                 "before")
            if failure is None:
                self._moving[number] = Moving(number, view, told, what)
                self._changed.notify_all()
        if failure is not None:
            told(failure)

    def put_back(self, moving: Moving, nbytes: int) -> None:
        """Put back a piece that was taken. nbytes: how many bytes of it are over; 0 after an error."""
        with self._changed:
            moving.held -= 1
            moving.left -= nbytes
            is_over = not moving.left or (self._failure is not None and not moving.held)
            error = self._failure if moving.left else None
            if is_over:
                del self._moving[moving.number]
        if is_over:
            moving.told(error)

    def fail(self, error: NodeError) -> None:
        """Fail all transfers, now and later. One that threads are busy with is over when they have put it back."""
        with self._changed:
            self._failure = self._failure or error
            idle = [moving for moving in self._moving.values() if not moving.held]
            for moving in idle:
                del self._moving[moving.number]
            self._changed.notify_all()
        for moving in idle:
            moving.told(self._failure)

    def _rewind(self, number: int) -> None:
        """Go on with transfer `number`."""


class Outbox(_Box):
    """The transfers of a track to another node. precedence: of this node, shared by all its outboxes."""

    def __init__(self, track: Track, precedence: Precedence) -> None:
        super().__init__()
        self._track, self._precedence = track, precedence
        self._next = self._offset = 0

    def take(self) -> tuple[Moving, PieceHeader] | None:
        """Wait for the next piece to send, and for its turn; None after a failure."""
        while True:
            with self._changed:
                self._changed.wait_for(self._has_next)
            if self._track is Track.PERSISTENT:
                self._precedence.wait()
            with self._changed:
                if self._failure is not None:
                    return None
                if self._has_next():  # else another thread has taken it meanwhile
                    return self._piece()

    def _piece(self) -> tuple[Moving, PieceHeader]:
        moving, offset = self._moving[self._next], self._offset
        total = len(moving.view)
        nbytes = min(PIECE_NBYTES, total - offset)
        moving.held += 1
        self._offset += nbytes
        if self._offset == total:
            self._next, self._offset = self._next + 1, 0
            self._changed.notify_all()
        if self._track is Track.TEMPORARY:
            self._precedence.begin()
        return moving, PieceHeader(moving.number, total, offset, nbytes)

    def put_back(self, moving: Moving, nbytes: int) -> None:
        super().put_back(moving, nbytes)
        if self._track is Track.TEMPORARY:
            self._precedence.end()

    def _has_next(self) -> bool:
        return self._failure is not None or self._next in self._moving

    def _rewind(self, number: int) -> None:
        self._next, self._offset = number, 0


class Inbox(_Box):
    """The transfers from another node."""

    def place(self, piece: PieceHeader) -> Moving | None:
        """Wait until the piece's transfer has a place; None after a failure.

        NodeError if the other node has sent another piece than this one expects: they run different programs.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or piece.number in self._moving)
            if self._failure is not None:
                return None
            moving = self._moving[piece.number]
            fits = 0 < piece.nbytes <= min(PIECE_NBYTES, moving.left) and piece.offset + piece.nbytes <= piece.total
            if piece.total != len(moving.view) or not fits:
                raise NodeError(f"transfer {piece.number} has {piece.total} bytes there and {len(moving.view)} here, of "
                                f"{moving.what}; start all nodes with the same options")
            moving.held += 1
            return moving
