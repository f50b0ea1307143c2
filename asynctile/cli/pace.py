"""How fast a run goes and how long it still takes: seconds by kind of work, of the steps, validations and saves that are left.

Covers `RunPace`, which is told when each was done; what lies between two of these belongs to the second. Pure but for the
clock, which is read at each of them and wherever the time left is asked for. How it is shown is display.py's.

The time left should settle early and stay. So the work of a kind is taken to last what it has lasted, its first time left out
(programs are recorded, memory is touched first), later ones counting more: the n-th n - 1 times as much as the second. Steps by
coroutines, as a run begins with, say nothing of those that are played; once two of these were timed the others are forgotten.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from asynctile.layers import StepReport

__all__ = ["Ahead", "RunPace"]

#: Steps of which speed and stalls are said.
_RECENT_STEPS = 20
#: What a step leaves of the smoothed loss of those before it: half of it is of the last 14 steps.
_KEPT = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """The work of a run. steps: in all; done: before it went on. validate_every, save_every: steps between them; both come
    behind the last step too. flops_per_token: of the model, forward and backward. flops_per_s: of the device's products; None:
    not known, as utilization is then.
    """

    steps: int
    done: int
    validate_every: int
    save_every: int
    flops_per_token: float
    flops_per_s: float | None = None


class RunPace:
    """Of a run whose steps begin now."""

    def __init__(self, ahead: Ahead) -> None:
        self.steps, self.done = ahead.steps, ahead.done
        self._ahead = ahead
        #: when the last work was done
        self._marked = time.monotonic()
        self._by_coroutines, self._played, self._validations, self._saves = Seconds(), Seconds(), Seconds(), Seconds()
        self._validated = self._saved = ahead.done
        #: batches of a validation: how long they take, how many they are, and when the last was done
        self._batches, self._batches_each, self._batch_marked = Seconds(), 0, self._marked
        self._reports: deque[StepReport] = deque(maxlen=_RECENT_STEPS)
        self._smoothed, self._weight = 0.0, 0.0

    def step(self, report: StepReport) -> None:
        """A step was done."""
        self.done = report.step
        step_s = self._elapsed()
        if report.played or self._played.count:
            self._played.add(step_s)
        else:
            self._by_coroutines.add(step_s)
        self._reports.append(report)
        if math.isfinite(report.loss):
            self._smoothed = _KEPT * self._smoothed + (1 - _KEPT) * report.loss
            self._weight = _KEPT * self._weight + (1 - _KEPT)

    def validating(self, done: int, total: int) -> None:
        """So many of the batches of a validation are done."""
        now = time.monotonic()
        if done:
            self._batches.add(now - self._batch_marked)
        self._batch_marked, self._batches_each = now, total

    def validated(self) -> None:
        """A validation was done."""
        self._validated = self.done
        self._validations.add(self._elapsed())

    @property
    def _validation_s(self) -> float:
        """The first is known by its batches, of which only the first is not like the others."""
        if self._validations.count < 2 and self._batches.count > 1:
            return self._batches_each * self._batches.each
        return self._validations.each

    def saved(self) -> None:
        """A checkpoint was made, as far as the steps wait for it."""
        self._saved = self.done
        self._saves.add(self._elapsed())

    def _elapsed(self) -> float:
        before, self._marked = self._marked, time.monotonic()
        return self._marked - before

    @property
    def last(self) -> StepReport | None:
        """Of the last step; None before the first."""
        return self._reports[-1] if self._reports else None

    @property
    def smoothed_loss(self) -> float:
        """The mean of the losses of this session so far, the last ones counting most; nan if none was finite."""
        return self._smoothed / self._weight if self._weight else math.nan

    @property
    def tokens_per_s(self) -> float:
        """Positions a second in the recent steps, without what lies between them."""
        return self._a_second(lambda report: report.tokens_per_s * report.step_s)

    @property
    def stalled(self) -> float | None:
        """Share of the recent steps in which compute waited for bytes; None where that is not measured."""
        share = self._a_second(lambda report: report.stall_s)
        return None if math.isnan(share) else share

    @property
    def utilization(self) -> float | None:
        """Share of the device's products' rate that the model's own arithmetic has in the recent steps (MFU)."""
        rate = self._ahead.flops_per_s
        return None if rate is None else self.tokens_per_s * self._ahead.flops_per_token / rate

    @property
    def left_s(self) -> float | None:
        """Seconds until all is done; None before two steps of a kind were timed."""
        steps = self._played if self._played.count > 1 else self._by_coroutines
        if steps.count < 2:
            return None
        left = self.steps - self.done
        whole = left * steps.each
        whole += _due(self._validated, self.steps, self._ahead.validate_every) * self._validation_s
        whole += _due(self._saved, self.steps, self._ahead.save_every) * self._saves.each
        # Between two steps that take long it goes on to fall, and waits for one that takes longer than others did.
        return max(0.0, whole - min(time.monotonic() - self._marked, steps.each))

    @property
    def left(self) -> str | None:
        """`left_s` as hours, minutes and seconds."""
        if (found := self.left_s) is None:
            return None
        hours, seconds = divmod(round(found), 3600)
        return (f"{hours}:{seconds // 60:02}" if hours else f"{seconds // 60}") + f":{seconds % 60:02}"

    def _a_second(self, of: Callable[[StepReport], float]) -> float:
        """What the recent steps report together, for a second of them."""
        reports = tuple(self._reports)  # at once: who draws is another thread than who adds
        return sum(of(report) for report in reports) / max(sum(report.step_s for report in reports), 1e-9)


class Seconds:
    """What work of a kind takes, from what it took so far; 0 as long as there was none."""

    __slots__ = ("count", "each")

    def __init__(self) -> None:
        self.count, self.each = 0, 0.0

    def add(self, seconds: float) -> None:
        """It was done once more. The weights 0, 1, 2, ... of all so far come to a gain of 2/n for the n-th."""
        self.count += 1
        self.each += (seconds - self.each) * min(1.0, 2 / self.count)


def _due(last: int, steps: int, every: int) -> int:
    """How many of what comes every so many steps, and behind the last one, come behind step `last`."""
    return max(0, -(-steps // every) - last // every) if last < steps else 0
