"""The validations of a run: on which windows, at which steps, which was best, and when to stop.

Covers `Validations`, which decides and remembers but computes nothing. asynctile/layers/evaluation.py computes the loss, and
session.py asks for it and records the result. A resumed run decides as if it had never stopped, so a checkpoint holds all that
a decision needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from asynctile.cli.corpus import Corpus
from asynctile.cli.options import Options
from asynctile.layers.data_source import Windows, validation_batches
from asynctile.storage.counts import counted
from asynctile.storage.input import shown

__all__ = ["Validations", "tokens_of"]

#: Defaults of --validate-every and --validation-tokens: this many validations of this many batches, but at most this many
#: tokens each, or a run of three steps would end in a minute of validation.
_VALIDATIONS, _BATCHES, _TOKENS = 10, 20, 1 << 14


class Validations:
    """Decides about validations. Step 0 stands for the model before the first step.

    batches: the windows, the same each time. every: steps between validations. step: the newest validated step, -1 if none.
    best_loss, best_step: of the lowest loss so far, None before. without_gain: validations since then.
    """

    def __init__(self, batches: Windows, steps: int, every: int | None = None, stop_after: int | None = None) -> None:
        self.batches = batches
        self._steps = steps
        self.every = max(1, steps // _VALIDATIONS) if every is None else every
        self.stop_after = stop_after
        self.step = -1
        self.best_loss: float | None = None
        self.best_step: int | None = None
        self.without_gain = 0

    @classmethod
    def of(cls, corpus: Corpus, options: Options) -> Validations:
        """Return the validations of a run, on windows of its held-out part."""
        assert options.seq_len is not None
        batches = validation_batches(corpus.held_out, options.batch_size, options.seq_len, tokens_of(options))
        return cls(batches, options.steps, options.validate_every, options.stop_after)

    def is_due(self, step: int) -> bool:
        """Return whether the model after `step`, its current state, must be validated and was not yet."""
        return step > self.step and (step % self.every == 0 or step == self._steps)

    def count(self, step: int, loss: float) -> bool:
        """Record a validation, and return whether it is the best so far. A loss that is not finite never is."""
        self.step = step
        is_best = math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss)
        if is_best:
            self.best_loss, self.best_step, self.without_gain = loss, step, 0
        else:
            self.without_gain += 1
        return is_best

    @property
    def why_over(self) -> str:
        """A sentence that says why the run `is_over`."""
        best = "that was finite" if self.best_loss is None else f"below the {self.best_loss:.4f} of step {self.best_step}"
        return f"{counted(self.without_gain, 'validation')} in a row had no loss {best}"

    @property
    def is_over(self) -> bool:
        """Whether the run has gone `stop_after` validations without a lower loss."""
        return self.stop_after is not None and self.without_gain >= self.stop_after

    def state_dict(self) -> dict[str, Any]:
        """Return the state, ready for JSON."""
        return {"step": self.step, "best_loss": self.best_loss, "best_step": self.best_step,
                "without_gain": self.without_gain}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; ValueError if it is not a valid one."""
        found: list[Any] = [state.get(name) for name in self.state_dict()]
        step, loss, best, without = found
        has_best = isinstance(loss, int | float) and math.isfinite(loss) and _is_whole(best, 0)
        if not (_is_whole(step, -1) and _is_whole(without, 0) and (has_best or loss is best is None)):
            raise ValueError(f"its state of validations is {shown(dict(state))}, expected a step, the best loss and its step; "
                             "it was damaged or edited")
        self.step, self.best_loss, self.best_step, self.without_gain = step, loss, best, without


def tokens_of(options: Options) -> int:
    """Return the number of tokens of each validation of a run, if that many are held out."""
    assert options.seq_len is not None
    return options.validation_tokens or min(_BATCHES * options.batch_size * options.seq_len, _TOKENS)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 63
