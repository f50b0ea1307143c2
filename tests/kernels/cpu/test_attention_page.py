"""Attention over pages: compared with whole attention, and with the same bits however the tokens were fed."""

import numpy as np
import pytest

from asynctile.execute.workers.layout import layout
from asynctile.kernels.cpu import KERNELS
from asynctile.kernels.cpu.jit import prepare
from tests.kernels import reference
from tests.kernels.pages import fed, orders_of, tokens_of
from tests.kernels.reference import error, poison, random

#: lengths of the sequences, positions of a page, heads, columns of a head
CASES = [
    ([1], 8, 1, 4),
    ([3, 9], 4, 2, 16),
    ([17, 1, 30], 8, 3, 24),
    ([40], 16, 1, 128),
    ([70, 5], 64, 2, 64),
    ([9, 9], 5, 2, 7),
    ([33], 32, 1, 17),
]


def run(verb, arrays, params):
    KERNELS[verb](*arrays, *params)


def expected(q, k, v, lengths, heads):
    cuts = np.cumsum(lengths)[:-1]
    pieces = zip(*(np.split(x, cuts) for x in (q, k, v)), strict=True)
    return np.vstack([reference.attention(*piece, 1, heads)[0] for piece in pieces])


@pytest.mark.parametrize(("lengths", "places", "heads", "hs"), CASES)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_pages_agree_with_whole_attention_and_give_equal_bits_however_fed(lengths, places, heads, hs, scale):
    operands = [random(seed, sum(lengths), heads * hs, scale=scale) for seed in range(3)]
    found = {
        how: fed(run, parts, operands, lengths, places, heads, poison(2 * places, heads * hs))
        for how, parts in orders_of(lengths).items()
    }
    # A rounding error of a score is an absolute error of a weight's exponent. It grows with the scores, here 16 times larger.
    assert error(found["whole"], expected(*operands, lengths, heads)) < 1e-6 * scale * scale
    assert {how for how, out in found.items() if out.tobytes() != found["whole"].tobytes()} == set()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_nan_reaches_the_rows_that_meet_it_and_no_others(which):
    lengths, places, columns = [20, 6], 8, 32
    operands = [random(seed, 26, columns) for seed in range(3)]
    empty, parts = poison(2 * places, columns), orders_of(lengths)["mixed"]
    before = fed(run, parts, operands, lengths, places, 2, empty)
    operands[which][11, 5] = np.nan
    after = fed(run, parts, operands, lengths, places, 2, empty)
    hit = np.zeros_like(before, bool)
    hit[11 : 12 if which == 0 else 20, 5 if which == 2 else slice(0, 16)] = True
    assert np.isnan(after[hit]).all()
    assert after[~hit].tobytes() == before[~hit].tobytes()


def test_rows_that_meet_no_key_are_zero():
    operands = [random(seed, 3, 8) for seed in range(3)]
    page, out, stats = random(4, 8, 8), poison(3, 8), poison(4, 3)
    kept = page.copy()
    rows, pages = np.array([0, 2, -1, 0, 1, 9], np.int32), np.array([-1, 0, 1, 10], np.int32)
    for number in range(2):
        run("attention_page", [*operands, page, rows, pages, out, stats], (number, 2, number == 0, number == 1))
    assert not out.any() and page.tobytes() == kept.tobytes()


def test_only_the_places_of_new_tokens_change_in_a_page():
    operands, page = [random(seed, 4, 8) for seed in range(3)], random(4, 10, 8)
    kept, out, stats = page.copy(), poison(4, 8), poison(2, 4)
    rows, pages = np.array([7, 13, 7, 11, 3, 12, 7, 9], np.int32), np.array([7, 10], np.int32)
    run("attention_page", [*operands, page, rows, pages, out, stats], (0, 1, True, True))
    for place, row in ((3, 0), (1, 1)):
        assert page[place].tobytes() == operands[1][row].tobytes()
        assert page[5 + place].tobytes() == operands[2][row].tobytes()
    for place in (0, 2, 4):
        assert page[[place, 5 + place]].tobytes() == kept[[place, 5 + place]].tobytes()


def test_scores_far_apart_do_not_overflow():
    operands = [random(seed, 50, 64, scale=30.0) for seed in range(3)]
    out = fed(run, orders_of([50])["whole"], operands, [50], 16, 1, poison(32, 64))
    assert np.abs(out - expected(*operands, [50], 1)).max() / np.abs(out).max() < 1e-3


def test_every_token_is_fed_once():
    for parts in orders_of([3, 7]).values():
        assert sorted(i for part in parts for i in part if i >= 0) == list(range(len(tokens_of([3, 7]))))


def test_workers_without_python_call_the_kernel_by_its_address():
    prepare("attention_page")
    floats = [(4, 6), (4, 6), (4, 6), (10, 6), (4, 6), (4, 4)]
    operands = [(shape, np.float32) for shape in floats]
    operands[4:4] = [((8,), np.int32), ((6,), np.int32)]
    block = layout(KERNELS["attention_page"], operands, (2, 2, True, False), False)
    assert block is not None and block.address
