"""Attention over pages: compared with whole attention, and with the same bits however the tokens were fed."""

import numpy as np
import pytest

from tests.kernels import reference
from tests.kernels.pages import fed, orders_of
from tests.kernels.values import DTYPES, poison, random, wide

#: lengths of the sequences, positions of a page, heads, columns of a head
CASES = [
    ([1], 8, 1, 4),
    ([3, 9], 4, 2, 16),
    ([17, 1, 11], 8, 3, 24),
    ([40, 3], 40, 2, 64),
    ([9, 9], 5, 2, 7),
    ([35], 33, 1, 130),
]
#: The state between pages is rounded to bf16.
BF16_FORWARD = 2.0**-7


def expected(q, k, v, lengths, heads):
    cuts = np.cumsum(lengths)[:-1]
    pieces = zip(*(np.split(wide(x), cuts) for x in (q, k, v)), strict=True)
    return np.vstack([reference.attention(*piece, 1, heads)[0] for piece in pieces])


@pytest.mark.parametrize(("lengths", "places", "heads", "hs"), CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_agree_with_whole_attention_and_give_equal_bits_however_fed(machine, lengths, places, heads, hs, dtype):
    operands = [random(seed, sum(lengths), heads * hs, dtype=dtype) for seed in range(3)]
    found = {
        how: fed(machine.run, parts, operands, lengths, places, heads, poison(2 * places, heads * hs, dtype=dtype))
        for how, parts in orders_of(lengths).items()
    }
    limit = BF16_FORWARD if dtype == "bf16" else 1e-6
    assert reference.error(wide(found["whole"]), expected(*operands, lengths, heads)) < limit
    assert {how for how, out in found.items() if out.tobytes() != found["whole"].tobytes()} == set()


@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_of_other_texts_before_and_after_change_no_bit(machine, dtype):
    """The other pages belong to nobody, as where a pass visits more pages than one text has."""
    operands, found = [random(seed, 1, 16, dtype=dtype) for seed in range(3)], set()
    old = random(4, 16, 16, dtype=dtype)
    for own, count in ((0, 1), (0, 3), (1, 3), (2, 3)):
        page, out, stats = old.copy(), poison(1, 16, dtype=dtype), poison(4, 1)
        owners = np.full((count, 2), -1, np.int32)
        owners[own] = 7, 0
        for number in range(count):
            arrays = [*operands, page, np.array([7, 5], np.int32), owners.reshape(-1), out, stats]
            machine.run("attention_page", arrays, (number, 2, number == 0, number == count - 1))
        found.add(out.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_nan_reaches_the_rows_that_meet_it_and_no_others(machine, which, dtype):
    lengths, places, columns = [20, 6], 8, 32
    operands = [random(seed, 26, columns, dtype=dtype) for seed in range(3)]
    empty, parts = poison(2 * places, columns, dtype=dtype), orders_of(lengths)["mixed"]
    before = fed(machine.run, parts, operands, lengths, places, 2, empty)
    operands[which][11, 5] = 0x7FC0 if dtype == "bf16" else np.nan
    after = fed(machine.run, parts, operands, lengths, places, 2, empty)
    hit = np.zeros_like(before, bool)
    hit[11 : 12 if which == 0 else 20, 5 if which == 2 else slice(0, 16)] = True
    assert np.isnan(wide(after)[hit]).all()
    assert after[~hit].tobytes() == before[~hit].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_meet_no_key_are_zero(machine, dtype):
    operands = [random(seed, 3, 8, dtype=dtype) for seed in range(3)]
    page, out, stats = random(4, 8, 8, dtype=dtype), poison(3, 8, dtype=dtype), poison(4, 3)
    kept = page.copy()
    rows, pages = np.array([0, 2, -1, 0, 1, 9], np.int32), np.array([-1, 0, 1, 10], np.int32)
    for number in range(2):
        machine.run("attention_page", [*operands, page, rows, pages, out, stats], (number, 2, number == 0, number == 1))
    assert not out.any() and page.tobytes() == kept.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_places_of_new_tokens_change_in_a_page(machine, dtype):
    operands, page = [random(seed, 4, 8, dtype=dtype) for seed in range(3)], random(4, 10, 8, dtype=dtype)
    kept, out, stats = page.copy(), poison(4, 8, dtype=dtype), poison(2, 4)
    rows, pages = np.array([7, 13, 7, 11, 3, 12, 7, 9], np.int32), np.array([7, 10], np.int32)
    machine.run("attention_page", [*operands, page, rows, pages, out, stats], (0, 1, True, True))
    for place, row in ((3, 0), (1, 1)):
        assert page[place].tobytes() == operands[1][row].tobytes()
        assert page[5 + place].tobytes() == operands[2][row].tobytes()
    for place in (0, 2, 4):
        assert page[[place, 5 + place]].tobytes() == kept[[place, 5 + place]].tobytes()
