"""The loss of a model that sees only the last token. A trained model should do better.

Covers `bigram_loss`. tokens.py supplies the tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["bigram_loss"]

Counts = NDArray[np.int64]


def bigram_loss(
    training: NDArray[Any], held_out: NDArray[Any], vocab_size: int, counted: NDArray[np.bool_] | None = None
) -> float:
    """Return the loss of a bigram model, counted on `training`, over the pairs of `held_out`: nats per token.

    The loss is the mean of -ln p(next | previous). Both arguments are ids (N,) of any integer type. Pairs with an id of
    `vocab_size` or more are left out. So are pairs of `held_out` whose second id is not `counted` (N,), unless that is None.
    ValueError if either has no pair left. Time and memory grow with the number of pairs and
    with `vocab_size`.

    The model is interpolated Kneser-Ney smoothing (Kneser and Ney, Improved backing-off for m-gram language modeling, ICASSP
    1995; interpolated as in Chen and Goodman, An empirical study of smoothing techniques for language modeling, Computer Speech
    and Language 13, 1999). c(a, b) is how often b follows a, and c(a) its sum over b. n(a) is how many different tokens follow
    a, n(b) how many different tokens precede b, and m how many different b there are:

    p(b | a) = (max(c(a, b) - D, 0) + D n(a) p(b)) / c(a), and p(b) if a was not seen
    p(b) = (max(n(b) - E, 0) + E m / vocab_size) / sum of n

    D and E are the `_discount` of the counts c(a, b) and n(b).
    """
    pairs, counts = _count_pairs(training, vocab_size)
    found, times = _count_pairs(held_out, vocab_size, counted)
    previous, following = found // vocab_size, found % vocab_size
    seen = np.bincount(pairs // vocab_size, counts, vocab_size)[previous]
    successors = np.bincount(pairs // vocab_size, minlength=vocab_size)[previous]
    at = np.minimum(np.searchsorted(pairs, found), len(pairs) - 1)
    together = np.where(pairs[at] == found, counts[at], 0)
    discount, lower = _discount(counts), _of_token(pairs, vocab_size)[following]
    likely = (np.maximum(together - discount, 0) + discount * successors * lower) / np.maximum(seen, 1)
    return float(times @ -np.log(np.where(seen > 0, likely, lower)) / times.sum())


def _of_token(pairs: Counts, vocab_size: int) -> NDArray[np.float64]:
    """Return p(b) of every token, (vocab_size,), from the number of different tokens that precede it."""
    predecessors = np.bincount(pairs % vocab_size, minlength=vocab_size)
    discount, different = _discount(predecessors), np.count_nonzero(predecessors)
    likely: NDArray[np.float64] = np.maximum(predecessors - discount, 0) + discount * different / vocab_size
    return likely / len(pairs)


def _discount(counts: Counts) -> float:
    """Return n1 / (n1 + 2 n2), where n1 entries were counted once and n2 twice. One more of each keeps it between 0 and 1."""
    once, twice = (np.count_nonzero(counts == times) for times in (1, 2))
    return (once + 1) / (once + 2 * twice + 2)


def _count_pairs(
    tokens: NDArray[Any], vocab_size: int, counted: NDArray[np.bool_] | None = None
) -> tuple[Counts, Counts]:
    """Return the pairs that occur, as previous * vocab_size + next in ascending order, and how often each does."""
    previous, following = tokens[:-1].astype(np.int64), tokens[1:].astype(np.int64)
    known = np.maximum(previous, following) < vocab_size
    if counted is not None:
        known &= counted[1:]
    if not known.any():
        raise ValueError(f"{len(tokens)} tokens contain no pair of ids below {vocab_size} to count; give more text")
    return np.unique((previous * vocab_size + following)[known], return_counts=True)
