"""What reaches a terminal or a pipe, and what becomes of it when nobody is there any more.

Covers `printable` and `one_line`, which text passes that may come from a file; `complain`, for stderr; `Output`, a stream whose
reader may leave; `console_on`, which says where the cursor may move; `open_streams`, for a program that was started without.
What is shown of a run is display.py.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "STDOUT", "Output", "complain", "console_on", "drop_output", "one_line", "open_console", "open_streams", "printable",
    "say",
]  # fmt: skip

#: How messages call it.
STDOUT = "stdout"
#: Set by Jupyter for its kernels, and so for the programs that a notebook starts.
_KERNEL = "JPY_PARENT_PID"
#: What a terminal obeys or cannot show: controls but tab and newline, what turns the direction of text, halves of characters.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: A sentence has some hundred characters; of a longer one, what it is about and the way out at its end are kept.
_BEGINNING, _END = 900, 300


def printable(text: str) -> str:
    """Text without control characters: a model of bytes writes any of them, and a terminal would obey."""
    return _OBEYED.sub("\N{REPLACEMENT CHARACTER}", text)


def escaped(text: str) -> str:
    """One line, in which control characters are written as in Python, and of which no more than fits a screen is left."""
    line = _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), " ".join(text.split()))
    return line if len(line) <= _BEGINNING + _END else f"{line[:_BEGINNING]} ... {line[-_END:]}"


def one_line(error: BaseException) -> str:
    """The sentence of an error, without line breaks, escaped and cut."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return escaped(f"{error.filename}: {error.strerror}")
    return escaped(str(error)) or type(error).__name__


def complain(sentence: str) -> None:
    """A line on stderr; nothing if nobody reads that either."""
    with suppress(OSError):
        print(escaped(sentence), file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Text on stdout, at once. OSError that names stdout if it goes nowhere."""
    try:
        sys.stdout.write(printable(text))
        sys.stdout.flush()
    except OSError as error:
        error.filename = STDOUT
        raise


def drop_output(stream: TextIO) -> None:
    """Let what a stream still holds, and what is written to it later, go nowhere: it could only fail once more at the exit."""
    with suppress(OSError, ValueError):  # a stream in memory has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


class Output:
    """A stream to print on. When it fails, since its reader has left or its disk is full, `lost` is told once, and what is
    written from then on is dropped: the work that was shown goes on until it may stop.
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
    """A console on stdout, as `Output` has it."""
    return console_on(cast("TextIO", Output(sys.stdout, lost)))


def console_on(stream: TextIO) -> Console:
    """A console that moves the cursor only on a terminal. FORCE_COLOR asks for colours alone, and a notebook gives `!asynctile`
    a terminal whose cursor moves it does not follow.
    """
    from rich.console import Console

    is_terminal = stream.isatty() and _KERNEL not in os.environ
    return Console(file=stream, force_terminal=None if is_terminal else False)


def open_streams() -> None:
    """Give a program that was started with stdin, stdout or stderr closed ones that lead nowhere.

    Else the first files that it opens get their numbers, and what some library prints ends up in them.
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
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (as long as the program)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a model writes what an ASCII terminal has no letters for
