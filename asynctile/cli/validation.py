"""The validations of a run: on which windows, at which steps, what was best, and when to stop.

Covers `Validations`, which decides and remembers; nothing is computed here. The loss is asynctile/layers/evaluation.py's, and
session.py asks for it and writes down what came of it. A run that goes on from a checkpoint decides as if it had never
stopped, so all that a decision needs is in the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from asynctile.cli.corpus import Corpus
from asynctile.cli.options import Options
from asynctile.layers.data import ValidationBatches
from asynctile.storage.input import shown

__all__ = ["Validations", "tokens_of"]

#: Without --validate-every and --validation-tokens: so many validations, each on the tokens of so many batches, but not on more
#: than a larger model does in the time of some steps: a run of three steps is not to end in a minute of validations.
_VALIDATIONS, _BATCHES, _TOKENS = 10, 20, 1 << 14


class Validations:
    """Of the model as it is after a step; 0: before the first.

    batches: the windows, the same each time. every: so many steps. step: the newest that was validated, -1 before.
    best_loss, best_step: of the lowest loss so far, None before. without_gain: validations since then.
    """

    def __init__(self, batches: ValidationBatches, steps: int, every: int | None = None, stop_after: int | None = None) -> None:
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
        """Those of a run, on windows of its held-out part."""
        assert options.seq_len is not None
        batches = ValidationBatches(corpus.held_out, options.batch_size, options.seq_len, tokens_of(options))
        return cls(batches, options.steps, options.validate_every, options.stop_after)

    def is_due(self, step: int) -> bool:
        """Whether the model after `step`, where it is now, is to be validated, and was not yet."""
        return step > self.step and (step % self.every == 0 or step == self._steps)

    def count(self, step: int, loss: float) -> bool:
        """Take down a validation; whether it is the best so far. A loss that is not finite never is."""
        self.step = step
        is_best = math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss)
        if is_best:
            self.best_loss, self.best_step, self.without_gain = loss, step, 0
        else:
            self.without_gain += 1
        return is_best

    @property
    def why_over(self) -> str:
        """A sentence, where it `is_over`."""
        best = "that is finite" if self.best_loss is None else f"below the {self.best_loss:.4f} of step {self.best_step}"
        return f"{self.without_gain} validations in a row found no loss {best}"

    @property
    def is_over(self) -> bool:
        """Whether the run has gone as long without a gain as it was to."""
        return self.stop_after is not None and self.without_gain >= self.stop_after

    def state_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"step": self.step, "best_loss": self.best_loss, "best_step": self.best_step,
                "without_gain": self.without_gain}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; ValueError if it is no such state."""
        found: list[Any] = [state.get(name) for name in self.state_dict()]
        step, loss, best, without = found
        has_best = isinstance(loss, int | float) and math.isfinite(loss) and _is_whole(best, 0)
        if not (_is_whole(step, -1) and _is_whole(without, 0) and (has_best or loss is best is None)):
            raise ValueError(f"its validations stand at {shown(dict(state))}, expected a step, the best loss and its step; it "
                             "was damaged or edited")
        self.step, self.best_loss, self.best_step, self.without_gain = step, loss, best, without


def tokens_of(options: Options) -> int:
    """How many tokens each validation of a run is on, if so many are held out."""
    assert options.seq_len is not None
    return options.validation_tokens or min(_BATCHES * options.batch_size * options.seq_len, _TOKENS)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 63
