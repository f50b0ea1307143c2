"""Attention of single tokens over a cache of keys and values in pages, for generation. Training uses attention.py.

A page holds S positions of one sequence, for one layer and one group of c key heads: S rows of keys, then S rows of values. The
g query heads of the group read them as in attention.py. Inputs say which page belongs to which sequence and which row is which
token, so one program serves all requests. Within a sequence, page numbers ascend with positions, so folding pages by number
folds them by position.
"""

from __future__ import annotations

from asynctile.ops.attention import expect_groups
from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile

#: The sequence of a row or page that belongs to none, in `rows` and `pages`.
NOBODY = -1


def attention_page(
    q: Tile,
    k: Tile,
    v: Tile,
    page: Tile,
    rows: Tile,
    pages: Tile,
    out: Tile,
    stats: Tile,
    *,
    number: int,
    heads: int,
    first: bool,
    last: bool,
) -> Operation:
    """Store the new tokens that belong to page (2 S, c hs), then fold it into out (R, g hs) for the rows of its sequence.

    q (R, g hs), k and v (R, c hs) of the new tokens, page and out are T.
    rows (2 R,) int32: row r is the token of sequence rows[2 r] (NOBODY: no token) at position rows[2 r + 1].
    pages (2 P,) int32: page `number`, of P, belongs to sequence pages[2 number] (NOBODY: to none), and its first key is at
    position pages[2 number + 1].
    stats (2 g, R): row h is the running maximum of head h, row g + h its running sum, as in `attention`.

    First, k and v of each row whose token belongs to the page's sequence, at one of the page's S positions, are stored there.
    Then each row of that sequence meets the page's keys at positions up to its own. `first` starts all rows, of every sequence.
    `last` divides every row by its sum; a row that met no key is 0 (stats are then unspecified). No two rows are the same
    token.
    Law: the bits of a row of out depend only on its q and on the keys and values that it meets. They do not depend on R, on the
    row's index, or on the contents of other rows or later positions, NaN included.
    Kernel: attention_page(q, k, v, page, rows, pages, out, stats, number, heads, first, last).
    """
    (count, columns), places = q.shape, page.shape[0] // 2
    expect("attention_page", out, q.shape)
    for tile in (k, v):
        expect("attention_page", tile, (count, k.shape[1]))
    expect("attention_page", page, (2 * max(places, 1), k.shape[1]))
    expect("attention_page", rows, (2 * count,))
    expect("attention_page", stats, (2 * heads, count))
    expect("attention_page", pages, (2 * max(pages.shape[0] // 2, number + 1),))
    expect_groups("attention_page", q, k, heads)
    access = "rrrurr" + ("ww" if first else "uu")
    operands = (q, k, v, page, rows, pages, out, stats)
    return Operation("attention_page", operands, access, (number, heads, first, last), 4 * count * places * columns)
