"""The choice of the next token from logits: its settings (`Sampling`) and the choices of one text (`Sampler`).

The steps have the order of transformers' logits processors: repetition penalty, temperature, top_k, top_p, min_p. Each step
looks only at tokens that the steps before it kept, so a choice among 50,000 tokens costs little more than finding the few
likeliest. serving.py and generation.py supply logits, stopping.py finds where a text ends.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.errors import AsynctileError
from asynctile.layers.config import LARGEST
from asynctile.storage.input import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The settings by which tokens are chosen. TypeError for a wrong type (a bool is not a number), ValueError out of range."""

    temperature: float = 0.8
    """Divides the logits. 0 takes the likeliest token, the first one if several are equally likely."""
    top_k: int | None = 50
    """Keep only this many likeliest tokens, and all that tie with the last of them; None: all."""
    top_p: float | None = None
    """Keep only the fewest likeliest tokens that together have this share of the probability, above 0 to 1; None: all."""
    min_p: float | None = None
    """Keep only tokens with at least this share of the likeliest token's probability, 0 to 1; None: all."""
    repetition_penalty: float | None = None
    """Divides positive and multiplies negative logits of tokens that the text already contains; None or 1: no penalty."""
    seed: int | None = None
    """Seed of the choices, at least 0: the same seed gives the same choices; None: different ones each time."""

    def __post_init__(self) -> None:
        self._check("temperature", Real, "a finite number of at least 0, such as 0.8", 0, sys.float_info.max)
        self._check("top_k", Integral, "a whole number of at least 1, or None for all", 1, None, or_none=True)
        self._check("top_p", Real, "a number above 0, at most 1, or None for all", 0, 1, above=True, or_none=True)
        self._check("min_p", Real, "a number from 0 to 1, or None for all", 0, 1, or_none=True)
        self._check("repetition_penalty", Real, "a number from 1e-38 to 3e+38, such as 1.2, or None for none", 1e-38, LARGEST,
                    or_none=True)
        self._check("seed", Integral, "a whole number of at least 0, or None for any", 0, None, or_none=True)

    def _check(self, name: str, kind: Any, expected: str, least: float, most: float | None, *, above: bool = False,
               or_none: bool = False) -> None:  # fmt: skip
        value = getattr(self, name)
        if value is None and or_none:
            return
        if isinstance(value, bool) or not isinstance(value, kind):
            raise TypeError(f"{name} is {shown(value)}, expected {expected}")
        try:
            number = int(value) if kind is Integral else float(value)
        except OverflowError:  # an int may be larger than every float
            number = math.inf
        # A NaN fails every comparison, so it is out of range.
        if not (number > least if above else number >= least) or (most is not None and not number <= most):
            raise ValueError(f"{name} is {shown(value)}, expected {expected}")
        object.__setattr__(self, name, number)


class Sampler:
    """The choices of one text. The same seed gives the same token ids."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: NDArray[np.float32], seen: Sequence[int] | NDArray[Any]) -> int:
        """Return a token id, chosen from logits (V,), which do not change. AsynctileError if they are not finite.

        seen: the ids of the text so far, prompt included. Only the repetition penalty uses them.
        """
        ids, weights = weighted(logits, seen, self._sampling)
        # One uniform number and cumulative sums in order of ids, as in NumPy's `Generator.choice` over all tokens.
        sums = weights.cumsum()
        sums /= sums[-1]
        return int(ids[sums.searchsorted(self._random.random(), side="right")])


def weighted(
    logits: NDArray[np.float32], seen: Sequence[int] | NDArray[Any], sampling: Sampling
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the ids (n,) that may follow, ascending, and their relative probabilities (n,), the largest of which is 1."""
    if not np.isfinite(logits).all():
        count = int(np.count_nonzero(~np.isfinite(logits)))
        raise AsynctileError(f"{count} of the model's {logits.size} logits are not finite, so that no token can be chosen; "
                             "its weights are damaged or have diverged: use another checkpoint")
    if sampling.repetition_penalty is not None and len(seen):
        logits = _penalised(logits, np.asarray(seen), sampling.repetition_penalty)
    if sampling.temperature == 0:
        return np.array([logits.argmax()]), np.ones(1)
    ids, found = _likeliest(logits, sampling.top_k)
    weights = found.astype(np.float64)
    with np.errstate(over="ignore"):  # subtract the largest first: a temperature close to 0 would make it infinite
        weights -= weights.max()
        weights /= sampling.temperature
    np.exp(weights, out=weights)
    if sampling.top_p is not None and sampling.top_p < 1:
        kept = _nucleus(weights, sampling.top_p)
        ids, weights = ids[kept], weights[kept]
    if sampling.min_p is not None:
        kept = np.flatnonzero(weights >= sampling.min_p)
        ids, weights = ids[kept], weights[kept]
    return ids, weights


def _penalised(logits: NDArray[np.float32], seen: NDArray[Any], penalty: float) -> NDArray[np.float32]:
    found = logits[seen]
    with np.errstate(over="ignore"):  # an overflow is clipped to a finite number below
        found = np.where(found < 0, found * np.float32(penalty), found / np.float32(penalty))
    penalised = logits.copy()
    penalised[seen] = np.clip(found, -LARGEST, LARGEST)
    return penalised


def _likeliest(logits: NDArray[np.float32], count: int | None) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return the `count` largest logits and all that equal the last of them: ids ascending (n,), and logits (n,)."""
    if count is None or count >= logits.size:
        return np.arange(logits.size), logits
    ids = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
    return ids, logits[ids]


def _nucleus(weights: NDArray[np.float64], share: float) -> NDArray[np.intp]:
    """Return the indices of the fewest largest weights that together have this share. Of equal weights the first ones go."""
    total = float(weights.sum())
    rest = (1 - share) * total
    # Weights below the mean part of the rest always go: all of them together stay below the rest. Only the others are sorted.
    ascending = np.sort(weights[weights >= rest / weights.size])
    sums = ascending.cumsum() + (total - float(ascending.sum()))
    gone = min(int(sums.searchsorted(rest, side="right")), ascending.size - 1)
    last = ascending[gone]
    kept = np.flatnonzero(weights >= last)
    more = gone - int(ascending.searchsorted(last))
    return np.delete(kept, np.flatnonzero(weights[kept] == last)[:more]) if more else kept
