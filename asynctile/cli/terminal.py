"""Output to a terminal or a pipe, also when its reader is gone.

Covers `printable` and `one_line`, for text that may come from a file; `complain`, for stderr; `Output`, a stream whose reader
may leave; `console_on`, which decides whether the cursor may move; `open_streams`, for a program started without streams.
display.py decides what a run shows.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "STDOUT", "Output", "complain", "console_on", "drop_output", "one_line", "open_console", "open_streams", "print_rows",
    "printable", "say",
]  # fmt: skip

#: The name of stdout in messages.
STDOUT = "stdout"
#: Jupyter sets this for its kernels, and thus for programs that a notebook starts.
_KERNEL = "JPY_PARENT_PID"
#: What a terminal obeys or cannot show: control characters except tab and newline, direction marks, halves of characters.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: What to do about errors of the system that say no more than their cause.
_WAYS_OUT = {
    errno.ENOSPC: "free some space there, or name another place", errno.EDQUOT: "free some space there, or name another place",
    errno.EROFS: "name a place that can be written", errno.EACCES: "change its mode, or name another place",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
}  # fmt: skip
#: Most sentences have a few hundred characters. Of a longer one, keep its subject and the advice at its end.
_BEGINNING, _END = 900, 300


def printable(text: str) -> str:
    """Return text with control characters replaced: a byte model writes any of them, and a terminal would obey."""
    return _OBEYED.sub("\N{REPLACEMENT CHARACTER}", text)


def escaped(text: str) -> str:
    """Return text as one line: control characters are escaped as in Python, and the middle of a very long line is cut."""
    line = _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), " ".join(text.split()))
    return line if len(line) <= _BEGINNING + _END else f"{line[:_BEGINNING]} ... {line[-_END:]}"


def one_line(error: BaseException) -> str:
    """Return an error's sentence in one line, escaped and cut."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        way = _WAYS_OUT.get(error.errno or 0, "") if error.strerror == os.strerror(error.errno or 0) else ""
        return escaped(f"{error.filename}: {error.strerror}{way and '; '}{way}")
    return escaped(str(error)) or type(error).__name__


def complain(sentence: str) -> None:
    """Write a line to stderr; do nothing if nobody reads that either."""
    with suppress(OSError):
        print(escaped(sentence), file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Write text to stdout and flush. An OSError names stdout if nobody reads it."""
    try:
        sys.stdout.write(printable(text))
        sys.stdout.flush()
    except OSError as error:
        error.filename = STDOUT
        raise


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Print (name, text) pairs, one per line with their texts aligned, so that other programs can read them too."""
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        say(f"{name:<{width}}  {text}\n")


def drop_output(stream: TextIO) -> None:
    """Send everything that a stream holds or gets later to /dev/null: it could only fail again at the exit."""
    with suppress(OSError, ValueError):  # a stream in memory has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


class Output:
    """A stream to print on that survives the loss of its reader or a full disk.

    When it first fails it calls `lost` once and drops all later text, so that the work it showed goes on until it may stop.
    """

    def __init__(self, stream: TextIO, lost: Callable[[OSError], None]) -> None:
        self._stream, self._lost = stream, lost
        self._open = True

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Callable[[], Any]) -> None:
        if not self._open:
            return
        try:
            act()
        except OSError as error:
            self._open = False
            drop_output(self._stream)
            self._lost(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def open_console(lost: Callable[[OSError], None]) -> Console:
    """Return a console on stdout, wrapped in `Output`."""
    return console_on(cast("TextIO", Output(sys.stdout, lost)))


def console_on(stream: TextIO) -> Console:
    """Return a console that moves the cursor only on a real terminal.

    FORCE_COLOR asks only for colors, and a notebook gives `!asynctile` a terminal that does not follow cursor moves.
    """
    from rich.console import Console

    is_terminal = stream.isatty() and _KERNEL not in os.environ
    return Console(file=stream, force_terminal=None if is_terminal else False)


def open_streams() -> None:
    """Replace missing stdin, stdout or stderr with streams to /dev/null.

    Otherwise the first opened files get their numbers, and output of some library ends up in them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (open as long as the program)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a model writes letters that an ASCII terminal lacks
