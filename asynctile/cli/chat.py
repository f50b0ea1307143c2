"""A conversation with a model in the terminal, for `asynctile generate --chat` and `--message`.

Covers `Chat`, and the renderer of its model's template. generate.py opens the model, sample.py streams text.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, suppress
from typing import Any

from asynctile.cli.sample import stream_text
from asynctile.cli.saved_model import Saved
from asynctile.cli.terminal import say
from asynctile.layers import Model, Sampling
from asynctile.layers.chat_format import ANSWERING
from asynctile.layers.chat_renderer import Renderer
from asynctile.layers.conversations import prompt_of
from asynctile.layers.stopping import Stopping
from asynctile.layers.tokenizer import Tokenizer
from asynctile.storage import documents
from asynctile.threads import start

__all__ = ["Chat", "open_renderer"]

#: Shown on a terminal where a message may be typed.
_MARK = "> "
#: The longest message, in bytes: it is held whole.
MESSAGE_NBYTES = 1 << 20
#: How many bytes of input are read at once.
_PIECE_NBYTES = 1 << 16
#: An answer that no template contains, and the longest text behind an answer that may end it.
_ANSWER, _MOST_ENDING = "asynctile's answer", 100


def open_renderer(given: dict[str, Any], saved: Saved, tokenizer: Tokenizer) -> Renderer:
    """Return the renderer of the template that --chat-template names, otherwise of the model's own."""
    format = saved.chat_format(given["chat_template"])
    return Renderer(format.template, format.names(tokenizer), format.origin)


class Chat:
    """A conversation: the messages so far, and how the model answers them."""

    def __init__(self, given: dict[str, Any], tokenizer: Tokenizer, sampling: Sampling, renderer: Renderer) -> None:
        self._given, self._tokenizer, self._sampling, self._renderer = given, tokenizer, sampling, renderer
        self._messages = [] if given["system"] is None else [{"role": "system", "content": given["system"]}]
        self._strings = [*given["stop"], *_endings(renderer)]

    async def run(self, model: Model, ends: Collection[int]) -> None:
        """Print the answer to --message, or to each line of the input until its end. Empty lines are no messages.

        ends: tokens that end an answer. So does the text that the template puts behind one.
        """
        if self._given["message"] is not None:
            await self._print_answer(self._given["message"], model, ends)
            return
        is_typed = sys.stdin.isatty() and sys.stdout.isatty()
        is_first = True
        async with aclosing(_lines(sys.stdin.fileno(), _MARK if is_typed else "")) as lines:
            async for line in lines:
                if not is_first and not is_typed:
                    say("\n")
                is_first = False
                await self._print_answer(line, model, ends)
                if is_typed:
                    say("\n")

    async def _print_answer(self, message: str, model: Model, ends: Collection[int]) -> None:
        self._messages.append({"role": "user", "content": message})
        prompt = await documents.finish(asyncio.to_thread(prompt_of, self._renderer, self._tokenizer, self._messages))
        answer = ""
        stopping = Stopping(ends, self._strings)
        async with aclosing(stream_text(model, self._tokenizer, prompt, max_new_tokens=self._given["max_new_tokens"],
                                        sampling=self._sampling, stopping=stopping)) as pieces:  # fmt: skip
            async for piece in pieces:
                say(piece)
                answer += piece
        self._messages.append({"role": ANSWERING, "content": answer})


def _endings(renderer: Renderer) -> list[str]:
    """Return the text that the template puts behind an answer, such as <|im_end|>, if there is any.

    A model that was not made for chats does not name it among the tokens that end a text.
    """
    try:
        text = renderer.text([{"role": "user", "content": "?"}, {"role": ANSWERING, "content": _ANSWER}])
    except ValueError:  # a template may refuse this conversation and render others
        return []
    ending = text.rpartition(_ANSWER)[2].strip() if _ANSWER in text else ""
    return [ending] if 0 < len(ending) <= _MOST_ENDING else []


async def _lines(descriptor: int, mark: str) -> AsyncGenerator[str]:
    """Yield the lines of the input that are not blank, without their ends. mark: printed before each line is read.

    ValueError for a line of more than MESSAGE_NBYTES.
    """
    rest, is_over = b"", False
    say(mark)
    while not is_over:
        piece = await _piece(descriptor)
        is_over = not piece
        *lines, rest = (rest + piece).split(b"\n")
        if is_over:
            lines, rest = [rest], b""
        if len(rest) > MESSAGE_NBYTES:
            raise ValueError(f"a line of the input has more than {MESSAGE_NBYTES:,} bytes, expected a message; end messages "
                             "with a new line")
        for line in lines:
            if line.strip():
                yield line.decode("utf-8", "replace").rstrip("\r")
            if not is_over:
                say(mark)


async def _piece(descriptor: int) -> bytes:
    """Return the next bytes of the input, b"" at its end.

    A thread of its own reads them: nothing can end the read of a terminal, and an interpreter waits for other threads. It does
    not read through sys.stdin, whose lock would be held at the end of the process.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[bytes] = loop.create_future()

    def settle(piece: bytes) -> None:
        if not found.done():
            found.set_result(piece)

    def read() -> None:
        try:
            piece = os.read(descriptor, _PIECE_NBYTES)
        except OSError:  # the terminal is gone
            piece = b""
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, piece)

    start(threading.Thread(target=read, name="asynctile-input", daemon=True))
    return await found
