"""Sequences whose keys and values lie in pages, fed some tokens at a time, as generation feeds them. For all devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

Array = Any
#: A function (verb, arrays, params) that runs a verb on arrays, which it may change.
Run = Callable[[str, Sequence[Array], Sequence[Any]], None]

NOBODY = -1


class Cache:
    """Pages of `places` positions for sequences of some lengths, a page of each in turn; a null page before and after each."""

    def __init__(self, lengths: Sequence[int], places: int, empty: Array) -> None:
        """Make the pages as copies of `empty`, of shape (2 places, columns), whose content is that of unused places."""
        owned = [(seq, start) for start in range(0, max(lengths), places) for seq, n in enumerate(lengths) if start < n]
        owners = [(NOBODY, 0)] + [entry for page in owned for entry in (page, (NOBODY, 7))]
        self.owners = np.array(owners, np.int32).reshape(-1)
        self.pages = [empty.copy() for _ in owners]

    def attend(self, run: Run, q: Array, k: Array, v: Array, tokens: Sequence[tuple[int, int]], heads: int) -> Array:
        """Return out of new tokens (sequence, position) after one pass over all pages."""
        rows = np.array(tokens, np.int32).reshape(-1)
        out, stats = np.full_like(q, 0x7FC0) if q.dtype.kind == "u" else np.full_like(q, np.nan), None
        stats = np.full((2 * heads, len(q)), np.nan, np.float32)
        last = len(self.pages) - 1
        for number, page in enumerate(self.pages):
            arrays = [q, k, v, page, rows, self.owners, out, stats]
            run("attention_page", arrays, (number, heads, number == 0, number == last))
        return out


def tokens_of(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return every token as (sequence, position), one sequence after another."""
    return [(seq, position) for seq, length in enumerate(lengths) for position in range(length)]


def fed(
    run: Run, parts: Sequence[Sequence[int]], operands: Sequence[Array], lengths: Sequence[int], places: int, heads: int,
    empty: Array,
) -> Array:  # fmt: skip
    """Return out of all tokens, fed in these parts; q, k and v in the order of tokens_of.

    NOBODY in a part stands for a row without a token.
    """
    cache, tokens = Cache(lengths, places, empty), [*tokens_of(lengths), (NOBODY, 3)]
    outs = np.empty_like(operands[0])
    for part in parts:
        picked = np.array(part)
        out = cache.attend(run, *(np.ascontiguousarray(x[picked]) for x in operands), [tokens[i] for i in part], heads)
        outs[picked[picked != NOBODY]] = out[picked != NOBODY]
        assert not np.any(out[picked == NOBODY]), "a row without a token is 0"
    return outs


def orders_of(lengths: Sequence[int], seed: int = 0) -> dict[str, list[list[int]]]:
    """Return ways to feed the tokens; earlier tokens of a sequence always come before later ones."""
    starts = np.cumsum([0, *lengths])
    one_by_one = [[int(i)] for i in range(starts[-1])]
    side_by_side = [
        [int(start) + at for start, length in zip(starts, lengths, strict=False) if at < length] for at in range(max(lengths))
    ]
    whole = [list(range(int(starts[-1])))]
    mixed = [int(i) for i in np.random.default_rng(seed).permutation(starts[-1])]
    gaps = [x for i in mixed for x in (i, NOBODY)]
    chunks = [list(range(at, min(at + 3, int(end)))) for start, end in pairwise(starts) for at in range(start, end, 3)]
    return {"one by one": one_by_one, "side by side": side_by_side, "whole": whole, "mixed": [gaps], "chunks": chunks}
