"""The choice of the rows to compute next: every text in turn, long prompts beside texts that are being written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers.batching import BUCKETS, Part, bucket_of, plan


def test_texts_being_written_come_first_and_a_prompt_gets_the_remaining_rows() -> None:
    assert plan([1, 100, 1], [0, 0, 0], 16) == [Part(0, 1, True), Part(2, 1, True), Part(1, 14, False)]
    assert plan([5, 3], [0, 0], 16) == [Part(0, 5, True), Part(1, 3, True)]
    assert plan([9, 9], [0, 0], 10) == [Part(0, 9, True), Part(1, 1, False)]


def test_with_too_few_rows_the_texts_that_waited_longest_are_next() -> None:
    assert plan([1, 1, 1], [0, 2, 1], 2) == [Part(1, 1, True), Part(2, 1, True)]


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 5)), min_size=1, max_size=40), st.integers(1, 64))
def test_rows_are_filled_and_no_text_gets_more_rows_than_it_needs(wishes: list[tuple[int, int]], most: int) -> None:
    missing, waited = [wish[0] for wish in wishes], [wish[1] for wish in wishes]
    parts = plan(missing, waited, most)
    assert sum(part.count for part in parts) == min(most, sum(missing)) or len(parts) == most
    assert len({part.index for part in parts}) == len(parts) == min(most, len(wishes))
    assert all(1 <= part.count <= missing[part.index] for part in parts)
    assert all(part.wants == (part.count == missing[part.index]) for part in parts)
    assert [part.wants for part in parts] == sorted((part.wants for part in parts), reverse=True)
    left_out = set(range(len(wishes))) - {part.index for part in parts}
    assert all(waited[index] <= min(waited[part.index] for part in parts) for index in left_out)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.integers(1, 64))
def test_no_text_waits_longer_than_all_others_take_for_a_row_each(prompts: list[int], most: int) -> None:
    """Each text is endless after its prompt. Between two of its turns, every other text has at most one turn without it."""
    missing, waited = list(prompts), [0] * len(prompts)
    for _ in range(3 * len(prompts)):
        for part in plan(missing, waited, most):
            missing[part.index] -= part.count - part.wants  # the token that it then chooses
            waited[part.index] = -1
        waited = [rounds + 1 for rounds in waited]
        assert max(waited) <= -(-len(prompts) // most) - 1


def test_few_programs_serve_every_number_of_rows() -> None:
    assert [bucket_of(rows, 64) for rows in (1, 2, 4, 5, 16, 17, 64)] == [1, 4, 4, 16, 16, 64, 64]
    assert [bucket_of(rows, 12) for rows in (1, 4, 5, 12)] == [1, 4, 12, 12]
    assert {bucket_of(rows, BUCKETS[-1]) for rows in range(1, 65)} == set(BUCKETS)
