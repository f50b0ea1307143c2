"""Times, shares and words that are typed. Sizes and counts are tested in tests/cli/test_refusals.py as users meet them."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.cli import values


@pytest.mark.parametrize(("text", "seconds"), [
    ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1:30:00", 5400), ("0:00:07", 7), ("2d", 172800), ("1d2h3m4.5s", 93784.5),
    ("0.25s", 0.25), ("100:00:00", 360000), ("1000000000s", 1e9),
])  # fmt: skip
def test_a_time_is_read(text: str, seconds: float) -> None:
    assert values.duration(text) == seconds


@pytest.mark.parametrize("text", [
    "0", "0s", "0:00:00", "0d0h0m0s", "30", "1:30", "1:60:00", "-5m", "5 m", "5m3h", "m", "", "1.5h", "nan", "inf", "1e3s",
    "٣s", "1000000001s", "9" * 400 + "s",
])  # fmt: skip
def test_an_invalid_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as 90s, 30m, 1h30m or 1:30:00"):
        values.duration(text)


@given(st.text(alphabet="0123456789:dhms.- ", max_size=12))
def test_any_text_gives_seconds_or_one_sentence(text: str) -> None:
    try:
        assert 0 < values.duration(text) <= 1e9
    except argparse.ArgumentTypeError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_a_share_lies_below_one() -> None:
    assert (values.below_one("0"), values.below_one("0.999")) == (0, 0.999)
    for text in ("1", "-0.1", "1.5", "nan"):
        with pytest.raises(argparse.ArgumentTypeError):
            values.below_one(text)


def test_one_word_out_of_several_is_accepted() -> None:
    check = values.one_of("a", "b", "c")
    assert check("b") == "b"
    with pytest.raises(argparse.ArgumentTypeError, match="'d' cannot be used; expected a, b or c"):
        check("d")


@pytest.mark.parametrize(("text", "found"), [
    ("127.0.0.1:29500", ("127.0.0.1", 29500)), ("node-0.example.org:1", ("node-0.example.org", 1)),
    ("[::1]:65535", ("::1", 65535)),
])  # fmt: skip
def test_an_address_is_a_host_and_a_port(text: str, found: tuple[str, int]) -> None:
    assert values.address(text) == found


@pytest.mark.parametrize("text", [
    "", ":", "host", "host:", ":29500", "host:0", "host:65536", "host:-1", "host:٣", "host:" + "9" * 5000,
])  # fmt: skip
def test_a_wrong_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"such as 127\.0\.0\.1:29500"):
        values.address(text)
