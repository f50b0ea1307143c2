"""The tree that adds partials: its shape, the order of its additions, and how many sums are alive at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers.partials import Partials


class Adder:
    """An adder of terms, which writes down what it adds. A term is a list of one text, the sum in parentheses."""

    def __init__(self) -> None:
        self.added: list[tuple[str, str]] = []
        self.partials: Partials[list[str]] = Partials(self.add)

    def add(self, source: list[str], target: list[str]) -> None:
        self.added.append((source[0], target[0]))
        target[0], source[0] = f"({target[0]}+{source[0]})", "spent"


def tree(begin: int, end: int) -> str:
    """Return the sum of terms begin .. end - 1 of a binary tree, written from its root down."""
    if end - begin == 1:
        return str(begin)
    middle = (begin + end) // 2
    return f"({tree(begin, middle)}+{tree(middle, end)})"


@given(st.integers(0, 8))
def test_the_root_is_the_binary_tree_over_the_numbers_of_the_partials(depth: int) -> None:
    adder = Adder()
    for number in range(2**depth):
        adder.partials.take([str(number)])
    assert adder.partials.root == [tree(0, 2**depth)]


def test_a_partial_is_added_as_soon_as_the_subtree_on_its_left_is_as_large() -> None:
    adder = Adder()
    for number in range(4):
        adder.partials.take([str(number)])
    assert adder.added == [("1", "0"), ("3", "2"), ("(2+3)", "(0+1)")]


@given(st.integers(1, 300))
def test_few_sums_are_alive_at_once_and_each_is_a_complete_subtree(count: int) -> None:
    alive = 0
    partials: Partials[int]

    def add(source: int, target: int) -> None:
        nonlocal alive
        assert alive <= count.bit_length(), "a partial beside the sums of all those before it"
        alive -= 1

    partials = Partials(add)
    for number in range(count):
        alive += 1
        partials.take(number)
        assert len(partials) == number + 1
        assert alive == (number + 1).bit_count()


def test_two_rounds_of_partials_are_two_trees_whose_roots_are_added_once() -> None:
    """The head and the embedding give the tied wte its partials in this way."""
    adder = Adder()
    for end in ("h", "e"):
        for number in range(4):
            adder.partials.take([f"{end}{number}"])
    assert adder.partials.root == ["(((h0+h1)+(h2+h3))+((e0+e1)+(e2+e3)))"]
    assert adder.added[-1] == ("((e0+e1)+(e2+e3))", "((h0+h1)+(h2+h3))")


def test_partials_that_fill_no_tree_have_no_root() -> None:
    adder = Adder()
    for number in range(3):
        adder.partials.take([str(number)])
    with pytest.raises(ValueError, match="too many values to unpack"):
        _ = adder.partials.root
