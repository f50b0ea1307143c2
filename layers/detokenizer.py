"""The text of tokens that arrive one by one: `Detokenizer`. tokenizer.py makes tokens, stopping.py finds where a text ends.

A token's text depends on its neighbors. The bytes of one character may be spread over several tokens, and some tokenizers strip
the first space or merge others. So each token is decoded together with those before it, of which only the last few are kept.

The way not taken: the library's own DecodeStream. It gives out nothing while the text ends in an invalid character, which may
be forever. It fails when a decoder takes text back. It has no end, where an unfinished character would be due.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.tokenizer import Tokenizer

#: The text of bytes that are not a character, or not yet a whole one.
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
#: A character has at most 4 bytes, so only the last 3 bytes of an invalid sequence can still become one.
_MOST_BYTES = 4
#: The most tokens that are kept, and how many remain once there are more: enough to see a character as a whole.
_MOST, _KEPT = 16, 8


class Detokenizer:
    """The text of tokens that follow a prompt (T,).

    Together, `push` and `end` give exactly the text that the tokens add to the decoded prompt. A character is given when its
    last byte arrives. A byte decoder may take back text that was given already, when bytes turn out to be invalid UTF-8. That
    text stays, and the tokens after it are decoded on their own.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] | NDArray[Any] = ()) -> None:
        self._tokenizer = tokenizer
        #: the last tokens, how many there were when their text was last whole, and the part of their text already given
        self._ids: list[int] = []
        self._clean = 0
        self._shown = ""
        self._begin_behind(np.asarray(prompt[-_KEPT:], np.int64))

    def push(self, token: int) -> str:
        """Return the text that `token` completes, which is often empty.

        An id beyond the tokenizer's vocabulary has no text: models may have more rows. ValueError for an id below 0, and for
        tokens that the tokenizer cannot decode.
        """
        if token >= self._tokenizer.vocab_size:
            return ""
        ids = [*self._ids, token]
        text = self._tokenizer.decode(ids)
        settled = _settled(text, len(ids))
        if not (settled.startswith(self._shown) or self._shown.startswith(settled)):
            self._ids, self._clean, self._shown = ids[self._clean : -1], 0, ""
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
        """Return the rest of the text once no more tokens come. An unfinished character becomes U+FFFD."""
        text = self._tokenizer.decode(self._ids)
        return text[len(self._shown) :] if text.startswith(self._shown) else self._tokenizer.decode(self._ids[self._clean :])

    def _begin_behind(self, prompt: NDArray[np.int64]) -> None:
        """Keep the tail of the prompt that decodes to whole characters; nothing if the prompt ends inside a character."""
        for begin in range(prompt.size):
            ids = [id for id in prompt[begin:].tolist() if id < self._tokenizer.vocab_size]
            text = self._tokenizer.decode(ids)
            if _UNFINISHED not in text:
                self._ids, self._clean, self._shown = ids, len(ids), text
                return

    def _keep(self, ids: list[int], *, held: str, visible: bool = False) -> None:
        """Keep only these tokens, unless they show nothing on their own, as spaces at the start of a text may."""
        text = self._tokenizer.decode(ids)
        if not visible or text.strip():
            self._ids, self._clean = ids, 0
            self._shown = text.removesuffix(held)


def _settled(text: str, count: int) -> str:
    """Return the beginning of the text of `count` tokens that no further token can change."""
    whole = text.rstrip(_UNFINISHED)
    return whole if count <= _MOST else text[: max(len(whole), len(text) - _MOST_BYTES + 1)]
