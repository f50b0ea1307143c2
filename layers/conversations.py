"""Chats in a program: rows to train on, and prompts to answer.

Covers `Chats`, and `prompt_of`, which the command line uses too. chats.py reads chats from files and checks messages,
chat_renderer.py applies the template in a process of its own, example_batches.py makes rows of examples.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.chat_format import ChatFormat
from asynctile.layers.chat_renderer import Message, Renderer
from asynctile.layers.chats import chat_example, checked_messages
from asynctile.layers.companions import Companions
from asynctile.layers.data import check_sizes
from asynctile.layers.example_batches import one_a_row
from asynctile.layers.jsonl import without_halves
from asynctile.layers.tokenizer import Tokenizer

__all__ = ["Chats", "prompt_of"]

_CORRECT = "correct it, or leave it out"


class Chats:
    """How a model writes chats: rows of tokens to train on, and prompts to answer. Use it as a context manager.

    A chat is a list of messages such as {"role": "user", "content": "Hello"}. The roles are system, developer, user, assistant
    and tool. The template is applied in a process of its own. Every call blocks for that, usually for less than a millisecond
    a chat, so a service calls it by asyncio.to_thread. Threads may share it.

    companions: those of the model, which have the template and the names of its special tokens. tokenizer: that of the model.
    template: the path of a file with another Jinja template.

    ValueError, in one sentence, if there is no template, if it is not valid, or if Jinja is missing. If a template takes too
    much time or memory, its process is ended, and that call and all later ones raise ValueError.
    """

    def __init__(
        self, companions: Companions, tokenizer: Tokenizer, *, template: str | os.PathLike[str] | None = None
    ) -> None:
        format = ChatFormat.of(companions, "the model", template)
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._renderer = Renderer(format.template, format.names(tokenizer), format.origin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process. Calls after the first do nothing."""
        with self._lock:
            self._renderer.close()

    def batch(
        self, chats: Iterable[list[dict[str, Any]]], seq_len: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (tokens, targets), int64 (B, T) each, one chat a row, for `Trainer.step`. Targets outside of answers are -100.

        Answers are found as by `asynctile train`. A chat of more than `seq_len` + 1 tokens is cut there. T is the least of
        `seq_len`, its half, quarter and eighth that takes all rows, so a training has at most four programs. The rest of a
        short row is ignored.

        ValueError, with the number of the chat, for one without an answer in its row, or if the template refuses it.
        """
        known = list(chats)  # outside of the lock, because making a chat may take a while
        if not known:
            raise ValueError("there are no chats, expected at least one")
        check_sizes(len(known), seq_len)
        with self._lock:
            examples = [chat_example(messages, None, self._tokenizer, self._renderer, f"chat {number}", _CORRECT)
                        for number, messages in enumerate(known, 1)]  # fmt: skip
        for number, example in enumerate(examples, 1):
            if not example.answers[1 : seq_len + 1].any():
                raise ValueError(f"chat {number} has no token of an answer within {seq_len} tokens, so there is nothing to "
                                 "learn; choose a larger seq_len, or leave it out")
        return one_a_row(examples, seq_len)

    def prompt(self, messages: list[dict[str, Any]]) -> NDArray[np.int64]:
        """Return the ids (T,) after which a model answers, for `Model.generate` or `Server.generate`.

        ValueError if this is no chat, or if the template refuses it.
        """
        with self._lock:
            return prompt_of(self._renderer, self._tokenizer, checked_messages(messages, "the chat", _CORRECT))


def prompt_of(renderer: Renderer, tokenizer: Tokenizer, messages: Sequence[Message]) -> NDArray[np.int64]:
    """Return the ids (T,) after which a model answers. ValueError if there are none, or if the template refuses the chat."""
    ids = np.asarray(tokenizer.encode(without_halves(renderer.prompt(messages))), np.int64)
    if not ids.size:
        raise ValueError(f"the chat template of {renderer.place} makes no tokens of the conversation; correct it, or name "
                         "another with --chat-template")
    return ids
