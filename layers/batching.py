"""The choice of rows for the next run of a decode program: `plan`. Pure.

A sequence needs a row for each of its tokens that is not in the cache yet, then chooses the next token from the logits of the
last one. A sequence that writes needs one row a token, a prompt that is being read needs many. A run takes as many rows as
there is room for. Which rows meet in a run changes no bit of any of them (asynctile/ops/attention_page.py), so the only
question is who waits for whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The row counts of programs: a few programs serve every number of rows.
BUCKETS = (1, 4, 16, 64)


@dataclass(frozen=True, slots=True)
class Part:
    """The next `count` uncached rows of sequence `index`. wants: whether the logits of the last row are needed."""

    index: int
    count: int
    wants: bool


def bucket_of(rows: int, most: int) -> int:
    """Return how many rows the program for `rows` rows has; `most` is the largest program."""
    return min(most, next((size for size in BUCKETS if size >= rows), most))


def plan(missing: Sequence[int], waited: Sequence[int], most_rows: int) -> list[Part]:
    """Return the rows of the next run, parts that want logits first.

    missing: for each sequence, in order of asking, how many of its tokens are not in its cache. waited: runs since the
    sequence was last in one. most_rows: the limit.

    Every sequence gets one row, those that waited longest first. The remaining rows go to the earliest sequence with more to
    compute. So a long prompt delays nobody by more than one run, and a crowd never starves a prompt.
    """
    order = sorted(range(len(missing)), key=lambda index: -waited[index])[:most_rows]
    counts = dict.fromkeys(order, 1)
    left = most_rows - len(counts)
    for index in sorted(order):
        more = min(left, missing[index] - 1)
        counts[index] += more
        left -= more
    parts = [Part(index, count, wants=count == missing[index]) for index, count in counts.items()]
    return sorted(parts, key=lambda part: not part.wants)
