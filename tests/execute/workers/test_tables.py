"""A schedule that no player could play is refused when its tables are made, in a sentence."""

from dataclasses import replace

import numpy as np
import pytest

from asynctile.execute.workers.native import WIDTHS
from asynctile.execute.workers.tables import ANY_DEVICE, COPY, OPERATION, TRANSFER, UPLOAD, room
from tests.execute.workers.schedules import Marked


@pytest.fixture
def tables():
    kinds, edges = [OPERATION, UPLOAD, TRANSFER, COPY], [(0, 1), (1, 2), (0, 3)]
    return Marked(kinds, edges, [0, 0, 1, 3], devices=[ANY_DEVICE, 2, 0, 1]).tables


def test_valid_tables_are_accepted_and_know_their_stretches(tables):
    assert (tables.count, tables.device_count) == (4, 3)
    assert tables.stretch_at.tolist() == [0, 2, 3, 3, 4]


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("kinds", lambda x: x.astype(np.int32), "kinds of a schedule is int32"),
        ("words", lambda x: np.repeat(x, 2)[::2], "words of a schedule is .*C-contiguous"),
        ("travels", lambda x: x[:-1].copy(), r"travels of a schedule is \(2,\), expected \(3,\)"),
        ("reals", lambda x: x[:, :3].copy(), r"reals of a schedule is \(4, 3\), expected \(4, 4\)"),
        ("what", lambda x: x[1:], "4 entries has 3 names"),
        ("successors_at", lambda x: x[::-1].copy(), "must rise from 0 to its 3 edges"),
        ("successors", lambda x: x * 0, "edges must lead forward"),
        ("successors", lambda x: x + 3, "edges must lead forward"),
        ("needs", lambda x: x + 1, "do not match the edges that lead to each entry"),
        ("stretches", lambda x: x[::-1].copy(), "stretches of a schedule are below 0 or fall"),
        ("devices", lambda x: x[:-1].copy(), r"devices of a schedule is \(3,\), expected \(4,\)"),
        ("devices", lambda x: x - np.int8(1), "devices of a schedule are below ANY_DEVICE"),
        ("devices", lambda x: x - np.int8(3) * (x == 2), "a copy over a link has none"),
        ("kinds", lambda x: x + np.int8(3), "kinds of a schedule are 3 to 8"),
        ("address", lambda x: x * 0, "has no address"),
        ("counts", lambda x: x * 0, "fewer than 2"),
        ("counts", lambda x: x + 1000, "more than 128 words"),
        ("words", lambda x: x[:-1].copy(), "lies outside its"),
        ("words_at", lambda x: x - 1, "lies outside its"),
    ],
)
def test_invalid_tables_are_refused(tables, name, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(tables, **{name: change(getattr(tables, name))})


def test_other_words_are_bound_to_the_same_entries(tables):
    other = tables.bound(tables.words + 1, "what these addresses are of")
    assert (other.words == tables.words + 1).all() and other.kinds is tables.kinds
    assert other.stretch_at.tolist() == tables.stretch_at.tolist()
    for words in (tables.words[1:], tables.words.astype(np.float64), np.repeat(tables.words, 2)[::2]):
        with pytest.raises(ValueError, match="give a C-contiguous int64 array"):
            tables.bound(words, None)


def test_a_call_reads_as_many_words_as_the_smallest_width_that_holds_it():
    assert [room(count) for count in (2, 16, 17, 48, 49, 128)] == [16, 16, 48, 48, 128, 128]
    assert room(WIDTHS[-1]) == WIDTHS[-1]
