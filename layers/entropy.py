"""The entropy of text under the best model that sees only the last token: the mark that a trained model must
pass.

Covers `bigram_entropy`. The tokens are those of `tokens.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.tokens import Tokens

__all__ = ["bigram_entropy"]

_PIECE = 1 << 20  # tokens counted at once
_DENSE_PAIRS = 1 << 22  # up to this many possible pairs, one counter each is quicker than sorting


def bigram_entropy(tokens: Tokens, vocab_size: int) -> float:
    """H(next | previous) of a text in nats a token, from the text's own counts.

    With c(a, b) the times that b follows a, c(a) the sum of these over b, and N = len(tokens) - 1 the sum
    over all:

    H = -1/N sum c(a, b) ln(c(a, b) / c(a)) = (sum c(a) ln c(a) - sum c(a, b) ln c(a, b)) / N

    No bigram model, wherever its counts are from, has a lower loss on this text: a model that does better has
    used more than the last token. With a large vocabulary and a short text, most pairs come once and H nears
    zero, a mark that is then too hard rather than too soft. Raises ValueError for fewer than 2 tokens or an
    id not below `vocab_size`.
    """
    if len(tokens) < 2:
        raise ValueError(
            f"the bigram entropy of {len(tokens)} tokens does not exist; expected 2 or more, give more text"
        )
    pairs, counts = _count_pairs(tokens, vocab_size)
    previous = np.bincount(pairs // vocab_size, counts)
    return float((_x_log_x(previous) - _x_log_x(counts)) / (len(tokens) - 1))


def _count_pairs(tokens: Tokens, vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pairs that occur, as previous * vocab_size + next, and how often, in the order of the pairs."""
    pairs, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    dense = np.zeros(vocab_size**2 if vocab_size**2 <= _DENSE_PAIRS else 0, np.int64)
    for start in range(0, len(tokens) - 1, _PIECE):
        codes = _pair_codes(
            tokens[start : start + _PIECE + 1], vocab_size
        )  # one more: pairs across the border count
        if dense.size:
            dense += np.bincount(codes, minlength=dense.size)
        else:
            new, times = np.unique(codes, return_counts=True)
            pairs, inverse = np.unique(np.concatenate([pairs, new]), return_inverse=True)
            counts = np.bincount(inverse, np.concatenate([counts, times])).astype(np.int64)
    if dense.size:
        pairs = np.flatnonzero(dense)
        counts = dense[pairs]
    return pairs, counts


def _pair_codes(piece: NDArray[Any], vocab_size: int) -> NDArray[np.int64]:
    if piece.max() >= vocab_size:
        raise ValueError(f"token id {piece.max()} is outside the vocabulary; expected 0 to {vocab_size - 1}")
    codes: NDArray[np.int64] = piece[:-1].astype(np.int64) * vocab_size + piece[1:]
    return codes


def _x_log_x(counts: NDArray[Any]) -> float:
    positive = counts[counts > 0].astype(np.float64)
    return float(positive @ np.log(positive))
