"""The text that tokens show until it ends: at a stop id, at a stop string, or when no more tokens come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers.stopping import Stopping
from asynctile.layers.tokenizer import ByteTokenizer
from asynctile.layers.wording import Wording
from tests.layers.test_detokenizer import MARKED, TOKENIZERS
from tests.layers.test_stopping import searched


def worded(wording: Wording, ids: list[int]) -> list[str]:
    """Return the text that tokens show up to the end, and the rest."""
    found = []
    for id in ids:
        found.append(wording.push(id))
        if wording.is_ended:
            return found
    return [*found, wording.end()]


def of_bytes(ids: int | tuple[int, ...] = (), strings: str | tuple[str, ...] = ()) -> Wording:
    return Wording(Stopping(ids, strings), ByteTokenizer(), ())


@given(st.text("aé€😀\n"), st.lists(st.text("aé€😀\n", min_size=1, max_size=3), max_size=3))
def test_a_text_is_shown_up_to_its_first_stop_string(text: str, strings: list[str]) -> None:
    assert "".join(worded(of_bytes(strings=tuple(strings)), list(text.encode()))) == searched(text, strings)[0]


def test_a_stop_id_may_be_the_first_token() -> None:
    assert worded(of_bytes(ids=65), [65, 66]) == [""]
    assert worded(of_bytes(ids=(7, 65)), [66, 65, 66]) == ["B", ""]


def test_a_stop_id_shows_the_held_back_part_and_an_unfinished_character_after_it() -> None:
    assert worded(of_bytes(ids=0, strings="END"), [*b"an EN", 0]) == [*"an ", "", "", "EN"]
    assert worded(of_bytes(ids=0, strings="END"), [*b"E", 0xE2, 0x82, 0]) == ["", "", "", "E\ufffd"]


def test_a_text_without_further_tokens_shows_the_held_back_part() -> None:
    assert worded(of_bytes(strings="END"), [*b"EN", 0xE2]) == ["", "", "", "EN\ufffd"]
    assert worded(of_bytes(strings="N\ufffd"), [*b"EN", 0xE2]) == ["E", "", "", ""]


def test_tokens_without_a_reader_end_only_at_ids() -> None:
    wording = Wording(Stopping(9), None, [1, 2])
    assert [wording.push(8), wording.end(), wording.is_ended] == ["", "", False]
    assert [wording.push(9), wording.is_ended] == ["", True]


def test_a_text_continues_its_prompt() -> None:
    word = MARKED.index("\u2581a")
    assert worded(Wording(Stopping(), TOKENIZERS["Metaspace"], [word]), [word]) == [" a", ""]
