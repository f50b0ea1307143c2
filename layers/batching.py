"""Which rows the next run of a decode program computes: `plan`. Pure.

A sequence wants the tokens that are not in its cache yet computed, and then the next one chosen from the logits of the last
of them: one row a token while it writes, many while its prompt is read. Each runs in as many rows as there is room for; which
rows meet in a run changes no bit of any (asynctile/ops/attention_page.py), so the only question is who waits for whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Rows of a program, so that few programs serve every number of rows.
BUCKETS = (1, 4, 16, 64)


@dataclass(frozen=True, slots=True)
class Part:
    """`count` rows of sequence `index`, from the first that is not in its cache. wants: the logits of the last of them."""

    index: int
    count: int
    wants: bool


def bucket_of(rows: int, most: int) -> int:
    """Rows of the program for so many, of which there is one for `most`."""
    return min(most, next((size for size in BUCKETS if size >= rows), most))


def plan(missing: Sequence[int], waited: Sequence[int], most_rows: int) -> list[Part]:
    """What comes next, those that want logits first.

    missing: tokens of each sequence that are not in its cache, in order of asking. waited: runs since it was last in one. Every
    sequence is given a row, those that have waited longest first; what is left of the rows goes to the first that has more
    to compute. So a long prompt holds up nobody by more than one run, and no crowd holds up a prompt for ever.
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
