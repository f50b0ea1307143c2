"""Choosing the next token from logits, by temperature and top-k, and the tokens that it follows. Which logits is model.py."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from asynctile.errors import AsynctileError

#: A context is padded to a multiple of this many tokens, so that few programs serve all lengths.
MULTIPLE = 32


class Context:
    """The last `most` tokens of a text."""

    def __init__(self, tokens: Iterable[int], most: int) -> None:
        self._tokens = deque(map(int, tokens), maxlen=most)
        self._most = most

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, token: int) -> None:
        """The next token; the first goes if there are too many."""
        self._tokens.append(token)

    def padded(self) -> NDArray[np.int32]:
        """Int32 (1, T), zeros behind the last token: they cannot be seen from it, since attention is causal."""
        length = min(-(-len(self) // MULTIPLE) * MULTIPLE, self._most)
        padded = np.zeros((1, length), np.int32)
        padded[0, : len(self)] = self._tokens
        return padded


class Sampler:
    """Draws token ids; the same seed gives the same choices.

    temperature: divides the logits; 0 takes the likeliest. top_k: only the k likeliest; None: all.
    """

    def __init__(self, temperature: float, top_k: int | None, seed: int | None) -> None:
        if not (isinstance(temperature, int | float) and math.isfinite(temperature) and temperature >= 0):
            raise ValueError(f"temperature is {temperature!r}, expected a number of at least 0, such as 0.8")
        if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
            raise ValueError(f"top_k is {top_k!r}, expected a whole number of at least 1, or None for all")
        self.temperature = temperature
        self.top_k = top_k
        self._random = np.random.default_rng(seed)

    def choose(self, logits: NDArray[np.float32]) -> int:
        """A token id from logits (V,). AsynctileError if they are not finite."""
        if not np.isfinite(logits).all():
            count = int(np.count_nonzero(~np.isfinite(logits)))
            raise AsynctileError(f"{count} of the model's {logits.size} logits are not finite, so that no token can be chosen; "
                                 "its weights are damaged or have diverged: use another checkpoint")
        if self.temperature == 0:
            return int(logits.argmax())
        # The largest is taken off first: a temperature close to 0 would make it infinite.
        with np.errstate(over="ignore"):
            scaled = (logits.astype(np.float64) - float(logits.max())) / self.temperature
        if self.top_k is not None and self.top_k < scaled.size:
            threshold = np.partition(scaled, -self.top_k)[-self.top_k]
            scaled[scaled < threshold] = -np.inf
        weights = np.exp(scaled)
        return int(self._random.choice(weights.size, p=weights / weights.sum()))
