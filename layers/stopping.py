"""The end of a text: at a token, or before a string.

detokenizer.py makes text of tokens, sampling.py chooses them.
"""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral

from asynctile.storage.input import shown

#: The most stop strings, and their greatest length. More are a mistake: each string is compared with every character.
MOST_STRINGS, MOST_CHARACTERS = 64, 1000


class Stopping:
    """The end of one text: at the first of `ids`, or where the first of `strings` is complete.

    If several strings become complete at the same character, the one that began first counts.

    ids: one token id or several. strings: one string or several, at most 64 of 1,000 characters each. found: the id or the
    string that ended the text, None until then. TypeError or ValueError for values that cannot end a text.
    """

    def __init__(self, ids: int | Collection[int] = (), strings: str | Collection[str] = ()) -> None:
        self._ids = frozenset(_checked_ids(ids))
        self._searches = [_Search(string) for string in _checked_strings(strings)]
        self._held = ""
        self.found: int | str | None = None

    def check_ids(self, vocab_size: int) -> None:
        """Raise ValueError for an id that a model of `vocab_size` tokens cannot write."""
        beyond = [id for id in self._ids if not 0 <= id < vocab_size]
        if beyond:
            raise ValueError(f"stop_ids has {min(beyond)}, but the model's ids are 0 to {vocab_size - 1}: no text would end "
                             "there; give ids of the model's own tokenizer")

    def is_end(self, token: int) -> bool:
        """Return whether a token ends the text. That token is not part of the text. Text before it may still be pushed."""
        if token in self._ids:
            self.found = token
        return self.found is not None

    def push(self, text: str) -> str:
        """Return the text that can be shown now that `text` follows: no stop string, and nothing that may begin one.

        However a text is cut into pieces, the same is shown and the same ends it. After a string has ended the text, nothing is
        shown.
        """
        if isinstance(self.found, str):
            return ""
        text, begin = self._held + text, len(self._held)
        for position in range(begin, len(text)):
            complete = [search.string for search in self._searches if search.step(text[position])]
            if complete:
                self.found = max(complete, key=len)
                self._held = ""
                return text[: position + 1 - len(self.found)]
        held = max((search.matched for search in self._searches), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        """Return the text that was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


class _Search:
    """A search for a string in characters that arrive one by one (Knuth, Morris and Pratt).

    matched: how much of the string's beginning stands at the end of the characters so far.
    """

    def __init__(self, string: str) -> None:
        self.string = string
        self.matched = 0
        #: for each beginning of the string, the longest shorter beginning that it ends with
        self._shorter = [0]
        for character in string[1:]:
            self._shorter.append(self._next(self._shorter[-1], character))

    def step(self, character: str) -> bool:
        """Return whether the string is complete with this character."""
        self.matched = self._next(self.matched, character)
        return self.matched == len(self.string)

    def _next(self, matched: int, character: str) -> int:
        while matched and self.string[matched] != character:
            matched = self._shorter[matched - 1]
        return matched + (self.string[matched] == character)


def _checked_ids(ids: int | Collection[int]) -> list[int]:
    found = list(ids) if isinstance(ids, Collection) else [ids]
    for id in found:
        if isinstance(id, bool) or not isinstance(id, Integral):
            raise TypeError(f"stop id is {shown(id)}, expected a token id, a whole number of at least 0")
        if id < 0:
            raise ValueError(f"stop id is {shown(id)}, expected a token id, a whole number of at least 0")
    return [int(id) for id in found]


def _checked_strings(strings: str | Collection[str]) -> list[str]:
    expected = f"expected a string of 1 to {MOST_CHARACTERS:,} characters, or several"
    if not isinstance(strings, Collection) or isinstance(strings, bytes | bytearray):
        raise TypeError(f"stop is {shown(strings)}, {expected}")
    found = [strings] if isinstance(strings, str) else list(strings)
    if len(found) > MOST_STRINGS:
        raise ValueError(f"stop has {len(found)} strings, expected at most {MOST_STRINGS}")
    for string in found:
        if not isinstance(string, str):
            raise TypeError(f"stop has {shown(string)}, {expected}")
        if not 0 < len(string) <= MOST_CHARACTERS:
            raise ValueError(f"stop has {shown(string)} of {len(string):,} characters, {expected}")
    return found
