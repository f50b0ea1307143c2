"""The speed of a run and the time it still needs, from the seconds that each kind of work takes.

Covers `RunPace`, which is told when each step, validation and save is done; the time between two of them belongs to the second.
Pure except for the clock, which is read at each of them and when the time left is asked for. display.py shows the figures.

The time left should settle early and stay. So each kind of work is expected to take its weighted mean so far. The first time is
left out (programs are recorded, memory is touched first), and the n-th counts n - 1 times as much as the second. The steps by
coroutines with which a run begins say nothing about played ones: once two played steps were timed, the others are forgotten.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from asynctile.layers import StepReport

__all__ = ["Ahead", "RunPace"]

#: Number of recent steps that speed and stalls are averaged over.
_RECENT_STEPS = 20
#: The weight that a step leaves to the smoothed loss before it: half of the weight is on the last 14 steps.
_KEPT = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """The work of a run.

    steps: in all; done: before this session. validate_every, save_every: steps between them; both also come after the last
    step. flops_per_token: of a step, without recomputation. flops_per_s: rate of matrix products on the device; None:
    unknown, and then utilization is unknown too.
    """

    steps: int
    done: int
    validate_every: int
    save_every: int
    flops_per_token: float
    flops_per_s: float | None = None


class RunPace:
    """The pace of a run whose steps begin now."""

    def __init__(self, ahead: Ahead) -> None:
        self.steps, self.done = ahead.steps, ahead.done
        self._ahead = ahead
        #: time at which the last work was done
        self._marked = time.monotonic()
        self._by_coroutines, self._played, self._validations, self._saves = Seconds(), Seconds(), Seconds(), Seconds()
        self._validated = self._saved = ahead.done
        #: batches of a validation: how long they take, how many there are, and when the last one was done
        self._batches, self._batches_each, self._batch_marked = Seconds(), 0, self._marked
        self._reports: deque[StepReport] = deque(maxlen=_RECENT_STEPS)
        self._smoothed, self._weight = 0.0, 0.0

    def step(self, report: StepReport) -> None:
        """Note that a step was done."""
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
        """Note how many batches of a validation are done."""
        now = time.monotonic()
        if done:
            self._batches.add(now - self._batch_marked)
        self._batch_marked, self._batches_each = now, total

    def validated(self) -> None:
        """Note that a validation was done."""
        self._validated = self.done
        self._validations.add(self._elapsed())

    @property
    def _validation_s(self) -> float:
        """Seconds of a validation. The first is estimated from its batches, of which only the first is slower than the others.
        """
        if self._validations.count < 2 and self._batches.count > 1:
            return self._batches_each * self._batches.each
        return self._validations.each

    def saved(self) -> None:
        """Note that a checkpoint was made, as far as steps wait for it."""
        self._saved = self.done
        self._saves.add(self._elapsed())

    def _elapsed(self) -> float:
        before, self._marked = self._marked, time.monotonic()
        return self._marked - before

    @property
    def last(self) -> StepReport | None:
        """The report of the last step; None before the first."""
        return self._reports[-1] if self._reports else None

    @property
    def smoothed_loss(self) -> float:
        """The mean loss of this session, weighted toward recent steps; nan if no loss was finite."""
        return self._smoothed / self._weight if self._weight else math.nan

    @property
    def tokens_per_s(self) -> float:
        """Positions per second in the recent steps, without the time between them."""
        return self._a_second(lambda report: report.tokens_per_s * report.step_s)

    @property
    def stalled(self) -> float | None:
        """The share of the recent steps in which compute waited for bytes; None if it is not measured."""
        share = self._a_second(lambda report: report.stall_s)
        return None if math.isnan(share) else share

    @property
    def utilization(self) -> float | None:
        """Model FLOPs utilization (MFU) of the recent steps: the model's own arithmetic over the device's rate."""
        rate = self._ahead.flops_per_s
        return None if rate is None else self.tokens_per_s * self._ahead.flops_per_token / rate

    @property
    def left_s(self) -> float | None:
        """Seconds until everything is done; None before two steps of a kind were timed."""
        steps = self._played if self._played.count > 1 else self._by_coroutines
        if steps.count < 2:
            return None
        left = self.steps - self.done
        whole = left * steps.each
        whole += times_due(self._validated, self.steps, self._ahead.validate_every) * self._validation_s
        whole += times_due(self._saved, self.steps, self._ahead.save_every) * self._saves.each
        # During a long step the estimate keeps falling, but no further than one step's time.
        return max(0.0, whole - min(time.monotonic() - self._marked, steps.each))

    @property
    def left(self) -> str | None:
        """`left_s` as hours, minutes and seconds."""
        if (found := self.left_s) is None:
            return None
        hours, seconds = divmod(round(found), 3600)
        return (f"{hours}:{seconds // 60:02}" if hours else f"{seconds // 60}") + f":{seconds % 60:02}"

    def _a_second(self, of: Callable[[StepReport], float]) -> float:
        """Return the recent steps' sum of `of`, per second of these steps."""
        reports = tuple(self._reports)  # copied at once: another thread adds to them
        return sum(of(report) for report in reports) / max(sum(report.step_s for report in reports), 1e-9)


class Seconds:
    """The expected seconds of a kind of work, from the measured ones so far; 0 before the first."""

    __slots__ = ("count", "each")

    def __init__(self) -> None:
        self.count, self.each = 0, 0.0

    def add(self, seconds: float) -> None:
        """Add a measurement. The weights 0, 1, 2, ... of all so far make the gain of the n-th one 2/n."""
        self.count += 1
        self.each += (seconds - self.each) * min(1.0, 2 / self.count)


def times_due(last: int, steps: int, every: int) -> int:
    """Return how often work due every `every` steps, and after the last step, is still due after step `last`."""
    return max(0, -(-steps // every) - last // every) if last < steps else 0
