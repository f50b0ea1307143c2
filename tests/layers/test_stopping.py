"""The end of a text, however its pieces arrive."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers.stopping import MOST_CHARACTERS, MOST_STRINGS, Stopping


def searched(text: str, strings: list[str]) -> tuple[str, str | None]:
    """Return the shown part of a whole text, and the stop string that ended it.

    The first string to be complete ends a text; of several at once, the longest.
    """
    for end in range(1, len(text) + 1):
        complete = [string for string in strings if text[:end].endswith(string)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def pushed(stopping: Stopping, pieces: list[str]) -> list[str]:
    return [stopping.push(piece) for piece in pieces]


@given(st.text("ab", max_size=14), st.lists(st.text("ab", min_size=1, max_size=5), max_size=4), st.data())
def test_the_cut_of_a_text_changes_nothing(text: str, strings: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]
    stopping = Stopping(strings=strings)
    shown = "".join(pushed(stopping, pieces)) + stopping.end()
    assert (shown, stopping.found) == searched(text, strings)


@given(st.text("ab", max_size=14), st.lists(st.text("ab", min_size=1, max_size=5), max_size=4))
def test_text_that_begins_no_stop_string_is_shown_at_once(text: str, strings: list[str]) -> None:
    stopping = Stopping(strings=strings)
    shown = "".join(pushed(stopping, list(text)))
    if stopping.found is None:
        beginnings = {string[:count] for string in strings for count in range(len(string))} | {""}
        assert text[len(shown) :] == max((one for one in beginnings if text.endswith(one)), key=len)


def test_a_stop_string_over_several_pieces_is_held_back_and_never_shown() -> None:
    stopping = Stopping(strings="\n\nQ:")
    assert pushed(stopping, ["Yes.", "\n", "\n", "A:", " no\n\n", "Q", ": more", "still"]) == [
        "Yes.", "", "", "\n\nA:", " no", "", "", ""]  # fmt: skip
    assert stopping.found == "\n\nQ:" and stopping.end() == ""


def test_a_stop_string_that_overlaps_itself_is_found() -> None:
    stopping = Stopping(strings=["aab"])
    assert pushed(stopping, ["a", "a", "a", "b"]) == ["", "", "a", ""]
    assert stopping.found == "aab"


def test_text_that_only_looked_like_a_stop_string_is_shown_at_the_end() -> None:
    stopping = Stopping(strings=["stop now"])
    assert (stopping.push("please stop"), stopping.end(), stopping.end()) == ("please ", "stop", "")
    assert stopping.found is None


def test_a_stop_id_ends_the_text_and_shows_the_held_back_part() -> None:
    stopping = Stopping(ids=[7, np.int64(8)], strings="END")
    assert not stopping.is_end(6)
    assert stopping.push("an E") == "an "
    assert stopping.is_end(8) and stopping.found == 8
    assert stopping.push("NE") + stopping.end() == "ENE"
    assert Stopping(0).is_end(0) and Stopping(0).found is None


def test_nothing_ends_a_text_by_default() -> None:
    stopping = Stopping()
    assert stopping.push("any \N{REPLACEMENT CHARACTER}") == "any \N{REPLACEMENT CHARACTER}"
    assert not stopping.is_end(0) and stopping.end() == ""


@pytest.mark.parametrize(
    ("given", "kind", "sentence"),
    [
        ({"strings": ""}, ValueError, "stop has '' of 0 characters, expected a string of 1 to 1,000 characters, or several"),
        ({"strings": ["a", ""]}, ValueError, "stop has '' of 0 char"),
        ({"strings": "a" * (MOST_CHARACTERS + 1)}, ValueError, "of 1,001 characters"),
        ({"strings": ["a"] * (MOST_STRINGS + 1)}, ValueError, "stop has 65 strings, expected at most 64"),
        ({"strings": b"a"}, TypeError, "stop is b'a', expected a string"),
        ({"strings": [b"a"]}, TypeError, "stop has b'a', expected a string"),
        ({"strings": None}, TypeError, "stop is None, expected"),
        ({"strings": itertools.repeat("a")}, TypeError, "stop is .*, expected"),
        ({"ids": -1}, ValueError, "stop id is -1, expected a token id"),
        ({"ids": [1, True]}, TypeError, "stop id is True, expected"),
        ({"ids": 1.0}, TypeError, "stop id is 1.0, expected"),
        ({"ids": "12"}, TypeError, "stop id is '1', expected"),
        ({"ids": itertools.count()}, TypeError, "stop id is .*, expected"),
    ],
)
def test_an_invalid_stop_is_refused_in_a_sentence(given: Any, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence) as caught:
        Stopping(**given)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
