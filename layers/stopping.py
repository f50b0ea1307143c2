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
        self._strings = _checked_strings(strings)
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
        text, self._held = self._held + text, ""
        complete = [(text.index(string) + len(string), -len(string), string) for string in self._strings if string in text]
        if complete:
            end, _, self.found = min(complete)
            return text[: end - len(self.found)]
        held = max((_begun(string, text) for string in self._strings), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        """Return the text that was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


def _begun(string: str, text: str) -> int:
    """Return how much of the beginning of `string` stands at the end of `text`."""
    most = min(len(string) - 1, len(text))
    return next((count for count in range(most, 0, -1) if text.endswith(string[:count])), 0)


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
