"""Text of tokens as they come one by one: `Detokenizer`. What tokens are is tokenizer.py, where a text ends stopping.py.

A token's text depends on its neighbours: bytes of one character may stand in several tokens, some tokenizers strip the first
space or merge others. So each token is decoded behind those before it, of which no more than the last few are kept. The
library's own DecodeStream does the same, but gives out nothing as long as the text ends in what is no character, which it may
for ever, fails where a decoder takes text back, and has no end, where an unfinished character is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.tokenizer import Tokenizer

#: What a tokenizer decodes bytes to that are no character, or not yet.
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
#: A character has at most 4 bytes, so of what is no character after more tokens only the last 3 may become one.
_MOST_BYTES = 4
#: So many tokens are kept at most, and so many if they were more: enough for a character to be seen as a whole.
_MOST, _KEPT = 16, 8


class Detokenizer:
    """The text of tokens behind a prompt (T,). What `push` and `end` give is together what they add to what the tokenizer
    decodes the prompt to.

    A character comes when its last byte does. Where a decoder would take back text that was given out (one of bytes, over
    bytes that turn out to be no UTF-8), that stays, and what comes behind it is decoded by itself.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] | NDArray[Any] = ()) -> None:
        self._tokenizer = tokenizer
        #: the last tokens, how many of them there were when their text was last whole, and what of it was given out
        self._ids: list[int] = []
        self._clean = 0
        self._shown = ""
        self._begin_behind(np.asarray(prompt[-_KEPT:], np.int64))

    def push(self, token: int) -> str:
        """The text that a token finishes, often none. An id beyond the vocabulary has none: models may have more rows.

        ValueError for an id below 0, and for tokens of which the tokenizer can make no text.
        """
        if token >= self._tokenizer.vocab_size:
            return ""
        ids = [*self._ids, token]
        text = self._tokenizer.decode(ids)
        settled = _settled(text, len(ids))
        if not (settled.startswith(self._shown) or self._shown.startswith(settled)):
            self._restart(ids[self._clean : -1])
            return self.push(token)
        self._ids = ids
        new = settled[len(self._shown) :]
        if settled == text:
            self._shown = text
            if new:
                self._keep(ids[self._clean :], held="", visible=True)
            self._clean = len(self._ids)
        elif new:
            self._shown = settled
        if len(self._ids) > _MOST:
            self._keep(self._ids[-_KEPT:], held=text[len(settled) :])
        return new

    def end(self) -> str:
        """What is left when no more tokens come: an unfinished character as U+FFFD. What is pushed then is another text."""
        text = self._tokenizer.decode(self._ids)
        if text.startswith(self._shown):
            text = text[len(self._shown) :]
        else:
            text = self._tokenizer.decode(self._ids[self._clean :])
        self._restart([])
        return text

    def _begin_behind(self, prompt: NDArray[np.int64]) -> None:
        """Of the end of a prompt, what makes whole characters by itself; none of it if that ends within one."""
        for begin in range(prompt.size):
            ids = [id for id in prompt[begin:].tolist() if id < self._tokenizer.vocab_size]
            text = self._tokenizer.decode(ids)
            if _UNFINISHED not in text:
                self._ids, self._clean, self._shown = ids, len(ids), text
                return

    def _restart(self, ids: list[int]) -> None:
        self._ids, self._clean, self._shown = ids, 0, ""

    def _keep(self, ids: list[int], *, held: str, visible: bool = False) -> None:
        """Keep only these tokens, unless they show nothing by themselves, as spaces at the start of a text may."""
        text = self._tokenizer.decode(ids)
        if not visible or text.strip():
            self._ids, self._clean = ids, 0
            self._shown = text.removesuffix(held)


def _settled(text: str, count: int) -> str:
    """The beginning of the text of `count` tokens that no further token changes."""
    whole = text.rstrip(_UNFINISHED)
    return whole if count <= _MOST else text[: max(len(whole), len(text) - _MOST_BYTES + 1)]
