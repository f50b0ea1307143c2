"""The mishaps of scenario `nodes`: what happens to two nodes, to their line or to their disk, and how nodes must end then.

Covers `MISHAPS`, and the judgment of a node that has ended. breaker.py trains, lets mishaps happen, and resumes.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from asynctile.cli.interrupt import EXIT_STATUS
from asynctile.cli.stress.disk import SmallDisk
from asynctile.nodes.tcp_exchange import PATIENCE_S

__all__ = ["MISHAPS", "Mishap", "NodeEnd", "wrong_with"]

#: Seconds in which nodes end that notice at once, and in which they end after a last step or save.
_AT_ONCE_S, _AFTER_WORK_S = 2.0, 20.0
#: Seconds in which nodes end that can tell only by silence.
_SILENT_S = PATIENCE_S + 10.0
#: Bytes that a file may have where files are limited: enough for a line in a log, too few for a shard of a checkpoint.
_FULL_NBYTES = 12 << 10
#: The exit status of an error.
_ERROR = 2


class NodeEnd(NamedTuple):
    """How a node ended. status: its exit status, or minus the signal. said: its last line."""

    number: int
    status: int
    said: str


def _other_of(node: int) -> str:
    return f"node {1 - node} (127.0.0.1:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mishap:
    """Something that happens to one of two nodes, to the process that is the line between them, or to the disk that they share.

    often: its weight when one is drawn. within_s: seconds in which nodes must have ended. happens: does it to a process, or to
    the disk. on_line, on_disk: it happens to the line, to the disk. is_fatal: its node cannot end by itself.
    status: of a node that noticed. too_late: of one that had finished before. words: returns what a node, by its number, must
    say that noticed.
    """

    often: int
    within_s: float
    happens: Callable[[Any], object]
    on_line: bool = False
    on_disk: bool = False
    is_fatal: bool = False
    status: int = _ERROR
    too_late: frozenset[int] = frozenset({0})
    words: Callable[[int], str] = _other_of

    def was_noticed(self, ends: Iterable[NodeEnd]) -> bool:
        """Return whether a node noticed; otherwise the training had ended before."""
        return any(end.status == self.status for end in ends)

    def explains(self, end: NodeEnd) -> bool:
        """Return whether a node that could end by itself may end like this."""
        return end.status in self.too_late or (end.status == self.status and self.words(end.number) in end.said)


def wrong_with(ends: Iterable[NodeEnd], mishap: Mishap | None) -> str | None:
    """Return what is wrong with how nodes ended that could end by themselves; None if nothing is.

    mishap: what happened to them; None if nothing did, and they should have finished.
    """
    for end in ends:
        if not (mishap.explains(end) if mishap is not None else end.status == 0):
            before = "before that, " if mishap is None else ""
            return f"{before}node {end.number} ended with status {end.status}; it said {end.said!r}"
    return None


def _send(number: signal.Signals, process: int) -> None:
    os.kill(process, number)


def _limit_files(process: int) -> None:
    """Let the files of a process grow no more, as where its user has no quota left."""
    resource.prlimit(process, resource.RLIMIT_FSIZE, (_FULL_NBYTES, _FULL_NBYTES))


#: By what a node is called afterwards; `cut` and `silenced` are said of the line, `full` of the disk. A silenced line stays
#: open and passes nothing on, as a lost cable does. Mishaps that only silence tells of are rare, because each takes half a
#: minute.
MISHAPS = {
    "killed": Mishap(often=6, within_s=_AT_ONCE_S, happens=partial(_send, signal.SIGKILL), is_fatal=True),
    "cut": Mishap(often=4, within_s=_AT_ONCE_S, happens=partial(_send, signal.SIGKILL), on_line=True),
    "full": Mishap(often=4, within_s=_AFTER_WORK_S, happens=SmallDisk.fill, on_disk=True,
                   words=lambda node: f": {os.strerror(errno.ENOSPC)}"),
    "limited": Mishap(often=2, within_s=_AFTER_WORK_S, happens=_limit_files, words=lambda node: os.strerror(errno.EFBIG)),
    "asked": Mishap(often=3, within_s=_AFTER_WORK_S, happens=partial(_send, signal.SIGTERM), status=EXIT_STATUS,
                    too_late=frozenset({0, -signal.SIGTERM}), words=lambda node: ""),
    "stopped": Mishap(often=1, within_s=_SILENT_S, happens=partial(_send, signal.SIGSTOP), is_fatal=True),
    "silenced": Mishap(often=1, within_s=_SILENT_S, happens=partial(_send, signal.SIGSTOP), on_line=True),
}  # fmt: skip
