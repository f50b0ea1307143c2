"""One command in a fork, under limits of time and memory: its output, its end, its cost.

Covers `Bench`, which forks, and `End`. The forking process has imported everything and has no thread, so that a command begins
in milliseconds. verdict.py decides whether an outcome is right.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from asynctile.cli.stress.inputs.surroundings import Conditions

__all__ = ["MOST_NBYTES", "MOST_S", "Bench", "End"]

#: Limits of a command: wall time, and memory above that of a process that has imported the program and does nothing.
MOST_S, MOST_NBYTES = 10.0, 300 << 20
#: Bytes that a command may write to a file and to an output before it is stopped, to protect the disk.
_MOST_WRITTEN, _MOST_SAID = 256 << 20, 16 << 20
_LOOK_EVERY_S = 0.02
_PAGE = os.sysconf("SC_PAGE_SIZE")
_USUAL = Conditions()


Stopped = Literal["time", "memory", "output"]


@dataclass(frozen=True, kw_only=True)
class End:
    """How a command ended.

    status: exit status, or minus the signal. stopped: why it was killed for a limit, if it was. nbytes: most memory above the
    import. sent: the signals sent to it, and after how many seconds.
    """

    status: int
    out: bytes
    err: bytes
    seconds: float
    nbytes: int
    stopped: Stopped | None = None
    sent: tuple[tuple[float, int], ...] = ()

    @property
    def words(self) -> str:
        """How it ended, for a sentence."""
        return f"status {self.status} and {self.err[-500:].decode()!r}"

    @property
    def killed(self) -> bool:
        """Whether it was killed, and not for a limit."""
        return self.status < 0 and self.stopped is None

    def told(self, word: str) -> list[str]:
        """Return the rest of each line of the output that begins with this word."""
        lines = (line.partition(" ") for line in self.out.decode().splitlines())
        return [rest for first, _, rest in lines if first == word]


class Bench:
    """Runs commands one by one. folder: for their temporary files and their home, made here. most_s: time limit of each."""

    def __init__(self, folder: Path, *, most_s: float = MOST_S) -> None:
        folder.mkdir()
        self.folder = folder
        self._most_s = most_s
        self._nothing = 0
        gc.freeze()  # a collection in a child would copy every page it visits
        self._nothing = self.run(lambda: None).nbytes

    def run(self, command: Callable[[], int | None], surroundings: Conditions = _USUAL) -> End:
        """Fork a command and follow it to its end. The command returns its exit status."""
        pipes = [os.pipe() for _ in range(2)]
        began_s = time.monotonic()
        child = os.fork()
        if child == 0:
            self._be(command, surroundings, [writer for _, writer in pipes])
        for _, writer in pipes:
            os.close(writer)
        said = {reader: bytearray() for reader, _ in pipes}
        sent: list[tuple[float, int]] = []
        stopped = self._watch(child, said, surroundings, began_s, sent)
        _, status, usage = os.wait4(child, 0)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # ends its children too
        for reader, text in said.items():
            _listen(reader, text)
            os.close(reader)
        out, err = map(bytes, said.values())
        return End(status=os.waitstatus_to_exitcode(status), out=out, err=err, seconds=time.monotonic() - began_s,
                   nbytes=(usage.ru_maxrss << 10) - self._nothing, stopped=stopped, sent=tuple(sent))  # fmt: skip

    def begin(self, command: Callable[[], int | None], log: Path) -> int:
        """Fork a command, and leave it to itself; return its process. Both outputs go to the file `log`."""
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        child = os.fork()
        if child == 0:
            self._be(command, _USUAL, [output, output])
        os.close(output)
        return child

    def _watch(self, child: int, said: dict[int, bytearray], surroundings: Conditions, began_s: float,
               sent: list[tuple[float, int]]) -> Stopped | None:  # fmt: skip
        """Record the command's output, and send its signals, until it ends; kill it and say why if it breaks a limit.

        child: process id. said: output by descriptor. sent: collects (seconds, signal). began_s: time.monotonic at the
        start.
        """
        signals = list(surroundings.signals)
        for reader in said:
            os.set_blocking(reader, False)
        ending = os.pidfd_open(child)
        try:
            talking = list(said)
            while ending not in select.select([ending, *talking], [], [], _until(signals, began_s))[0]:
                talking = [reader for reader in talking if _listen(reader, said[reader])]
                now_s = time.monotonic() - began_s
                while signals and now_s >= signals[0][0]:
                    number = signals.pop(0)[1]
                    sent.append((time.monotonic() - began_s, number))
                    os.kill(child, number)
                if stopped := self._reason(child, said, now_s):
                    os.kill(child, signal.SIGKILL)
                    return stopped
        finally:
            os.close(ending)
        return None

    def _reason(self, child: int, said: dict[int, bytearray], now_s: float) -> Stopped | None:
        """Return the reason to kill the command, if there is one."""
        if now_s > self._most_s:
            return "time"
        if _resident(child) - self._nothing > MOST_NBYTES:
            return "memory"
        return "output" if any(len(text) > _MOST_SAID for text in said.values()) else None

    def _be(self, command: Callable[[], int | None], surroundings: Conditions, outputs: list[int]) -> NoReturn:
        """Become the command in the fork, where no code of the parent may run any more, whatever happens."""
        status = 1
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(outputs[0], 1)
            os.dup2(outputs[1], 2)
            os.chdir(self.folder)
            os.environ |= {"TMPDIR": str(self.folder), "HOME": str(self.folder)}
            resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_WRITTEN, _MOST_WRITTEN))
            surroundings.enter()
            status = _exit_status(command)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)


def _until(signals: list[tuple[float, int]], began_s: float) -> float:
    """Return the seconds until the next check, which is due by the next signal at the latest."""
    left_s = signals[0][0] - (time.monotonic() - began_s) if signals else _LOOK_EVERY_S
    return min(max(left_s, 0.0), _LOOK_EVERY_S)


def _exit_status(command: Callable[[], int | None]) -> int:
    """Return the exit status as the interpreter does: what is printed on the way out counts."""
    try:
        status = command() or 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    if sys.stdout is not None:
        sys.stdout.flush()
    return status


def _listen(reader: int, text: bytearray) -> bool:
    """Read all that is available now; return whether more may come later."""
    try:
        while more := os.read(reader, 1 << 16):
            text += more
    except BlockingIOError:
        return True
    return False


def _resident(child: int) -> int:
    try:
        with open(f"/proc/{child}/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0  # the child has ended
