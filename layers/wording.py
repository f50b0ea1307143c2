"""What each token of a text shows, and whether it ends it: `Wording`, detokenizer.py and stopping.py together."""

from __future__ import annotations

from asynctile.layers.detokenizer import Detokenizer
from asynctile.layers.stopping import Stopping


class Wording:
    """Of one text. decoder: None where tokens are not to be read, and only ids can end it."""

    def __init__(self, stopping: Stopping, decoder: Detokenizer | None) -> None:
        self._stopping = stopping
        self._decoder = decoder

    def push(self, token: int, *, is_last: bool) -> tuple[str, bool]:
        """The text that can be shown now, and whether the token, or a string that it completes, ends the text.

        is_last: no more follow, so that nothing is held back.
        """
        stopping = self._stopping
        ended = stopping.is_end(token)  # then it is no part of the text
        if self._decoder is None:
            return "", ended
        if ended:
            return stopping.end() + self._decoder.end(), True
        text = stopping.push(self._decoder.push(token))
        if is_last and stopping.found is None:
            text += stopping.push(self._decoder.end())
        if is_last and stopping.found is None:
            text += stopping.end()
        return text, stopping.found is not None
