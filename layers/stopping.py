"""Where a text ends: at a token, or before a string.

What text tokens make is detokenizer.py, how they are chosen sampling.py.
"""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral

from asynctile.storage.input import shown

#: More strings, or longer ones, are a mistake: each is compared with every character.
MOST_STRINGS, MOST_CHARACTERS = 64, 1000


class Stopping:
    """Ends one text at the first of `ids`, or where the first of `strings` is complete; of several the one that began first.

    ids: one token id or several. strings: one string or several, of which at most 64 of 1,000 characters. found: the id or the
    string that ended the text, None as long as none did. TypeError, ValueError for what can end no text.
    """

    def __init__(self, ids: int | Collection[int] = (), strings: str | Collection[str] = ()) -> None:
        self._ids = frozenset(_checked_ids(ids))
        self._searches = [_Search(string) for string in _checked_strings(strings)]
        self._held = ""
        self.found: int | str | None = None

    def check_ids(self, vocab_size: int) -> None:
        """ValueError for an id that no model of so many tokens writes."""
        beyond = [id for id in self._ids if not 0 <= id < vocab_size]
        if beyond:
            raise ValueError(f"stop_ids has {min(beyond)}, and the model's ids are 0 to {vocab_size - 1}: no text would end "
                             "there; give ids of the model's own tokenizer")

    def is_end(self, token: int) -> bool:
        """Whether a token ends the text, of which it is no part. What came before it may still be pushed."""
        if token in self._ids:
            self.found = token
        return self.found is not None

    def push(self, text: str) -> str:
        """What may be shown now that `text` follows: neither a stop string nor what may be its beginning.

        However a text is cut, the same is shown of it, and the same ends it. Behind a string that ended it nothing is.
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
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


class _Search:
    """Finds a string in characters that come one by one, as Knuth, Morris and Pratt do. matched: how much of its beginning
    stands at the end of what came.
    """

    def __init__(self, string: str) -> None:
        self.string = string
        self.matched = 0
        #: for each beginning, the longest shorter one that stands at its end
        self._shorter = [0]
        for character in string[1:]:
            self._shorter.append(self._next(self._shorter[-1], character))

    def step(self, character: str) -> bool:
        """Whether the string is complete with this character."""
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
