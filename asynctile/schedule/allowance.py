"""How long texts may keep a share that others wait for: `Allowance`, pure; times are given to it.

Texts are computed round by round, and a round is short (layers/serving.py). If they gave the share back behind each, every
token beside a training would wait for a whole step. So they keep it for several rounds, and the next job waits for at most
PART of the time of the one before; or for one token, where that takes longer.
"""

from __future__ import annotations

#: Of the time of a job that is no text, what the texts behind it may take while others wait: all texts of the share together.
PART = 0.15


class Allowance:
    """Of one share."""

    def __init__(self) -> None:
        self._left_s = self._at = 0.0
        self._has_token = False

    def earn(self, seconds: float) -> None:
        """A job that is no text had the share for so long. What texts left of the job before is gone."""
        self._left_s = PART * seconds

    def begin(self, now: float) -> None:
        """Texts have the share from now on."""
        self._at = now
        self._has_token = False

    def goes_on(self, now: float, *, wrote: bool, others_wait: bool) -> bool:
        """Whether texts keep the share for one more round, as a round is over. wrote: the round gave a token.

        Until the first token they always do: behind a step their cache is made anew, and would be in vain.
        """
        self._has_token |= wrote
        took, self._at = now - self._at, now
        if not others_wait:
            return False
        self._left_s -= took
        return not self._has_token or self._left_s > 0
