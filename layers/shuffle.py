"""An order of things by chance that needs no memory: `shuffled`.

A permutation of a million numbers takes megabytes and has to be drawn as a whole. This one computes any place of it. It is a
Feistel network over the next power of four, walked until the result is in range (Black and Rogaway, Ciphers with arbitrary
finite domains, CT-RSA 2002). Its round function is the finalizer of SplitMix64 (Steele, Lea and Flood, Fast splittable
pseudorandom number generators, OOPSLA 2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["shuffled"]

_ROUNDS = 6


def shuffled(places: NDArray[np.int64], count: int, seed: int, counter: tuple[int, int]) -> NDArray[np.int64]:
    """Return which of `count` things stand at these places (n,) of an order drawn from `seed` and `counter`.

    All `count` places together give each thing once.
    """
    keys = np.asarray(np.random.Philox(key=seed, counter=[0, *counter, 0]).random_raw(_ROUNDS))
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    found = places.astype(np.uint64)
    outside = np.ones(len(found), np.bool_)
    while outside.any():
        found[outside] = _permuted(found[outside], half, keys)
        outside = found >= count
    return found.astype(np.int64)


def _permuted(numbers: NDArray[np.uint64], half: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a permutation of all numbers of 2 x `half` bits, at `numbers`."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << half) | right


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
