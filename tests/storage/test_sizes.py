"""Sizes between text and bytes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.storage.sizes import format_size, parse_size

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}  # fmt: skip


@pytest.mark.parametrize(("text", "nbytes"), [
    ("512MiB", 512 << 20), ("1.5 GB", 1_500_000_000), (" 64kib ", 64 << 10), (".5KiB", 512), ("1.1GB", 1_100_000_000),
    ("4096", 4096), ("0", 0), ("7 B", 7), (12, 12), (np.int64(5), 5), ("0.3B", 0),
])  # fmt: skip
def test_integers_and_text_with_units_are_read(text, nbytes):
    assert parse_size(text) == nbytes
    assert type(parse_size(text)) is int


@given(st.integers(0, 10**40), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_whole_numbers_of_a_unit_are_exact(number, unit, space):
    assert parse_size(f"{number}{space}{unit}") == number * UNITS[unit]


@given(st.integers(0, 1 << 60), st.sampled_from(sorted(UNITS)))
def test_fractions_are_rounded_down(thousandths, unit):
    text = f"{thousandths // 1000}.{thousandths % 1000:03d}{unit}"
    assert parse_size(text) == int(Fraction(thousandths, 1000) * UNITS[unit])


@pytest.mark.parametrize("size", [
    "-1", "-5MiB", -1, "nan", "NaNMiB", "inf", float("nan"), 1.5, True, False, None, "", "MiB", "5 parsecs", "5PiB", "1,5GB",
    "1e9", "5MiB5", "１", np.bool_(True), b"5", [5],
])  # fmt: skip
def test_anything_else_is_refused_in_one_line_that_names_it(size):
    with pytest.raises(ValueError) as caught:
        parse_size(size)
    assert repr(size) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("nbytes", "text"), [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536 << 20, "1.50 GiB"), (1048575, "1.00 MiB"),
    (5 << 40, "5.00 TiB"), (9999 << 40, "9999.00 TiB"), (-2048, "-2.00 KiB"),
])  # fmt: skip
def test_a_size_is_written_in_the_largest_binary_unit(nbytes, text):
    assert format_size(nbytes) == text


@given(st.integers(0, 1 << 60))
def test_a_written_size_reads_back_within_a_percent(nbytes):
    assert abs(parse_size(format_size(nbytes)) - nbytes) <= nbytes / 100
