"""How long texts may keep a share of a device while other jobs wait: `Allowance`. Pure; the caller passes in the times.

Texts are computed round by round, and a round is short (layers/serving.py). If texts gave the share back after each round,
every token beside a training would wait for a whole step. So texts keep the share for several rounds. The next job waits for at
most PART of the time of the job before; or for one token, if that takes longer.
"""

from __future__ import annotations

#: After a job that is not a text, all texts of the share together may take this fraction of its time while others wait.
PART = 0.15


class Allowance:
    """The allowance of texts on one share."""

    def __init__(self) -> None:
        self._left_s = self._at = 0.0
        self._has_token = False

    def earn(self, seconds: float) -> None:
        """Grant a new allowance after another job had the share for `seconds`. The rest of the last allowance is gone."""
        self._left_s = PART * seconds

    def begin(self, now: float) -> None:
        """Record that texts have the share from `now` on."""
        self._at = now
        self._has_token = False

    def goes_on(self, now: float, *, wrote: bool, others_wait: bool) -> bool:
        """Return, after a round, whether texts keep the share for one more round.

        now: the time. wrote: the round produced a token. others_wait: another job waits for the share.

        If no other job waits, texts give the share back, which then costs nothing. Otherwise they always keep it until their
        first token: their cache is rebuilt after a step, and giving up earlier would waste that work.
        """
        self._has_token |= wrote
        took, self._at = now - self._at, now
        if not others_wait:
            return False
        self._left_s -= took
        return not self._has_token or self._left_s > 0
