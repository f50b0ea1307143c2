"""Counts in sentences."""

import pytest

from asynctile.storage.counts import counted


@pytest.mark.parametrize(("number", "said"), [(0, "0 slots"), (1, "1 slot"), (2, "2 slots")])
def test_only_one_thing_is_singular(number: int, said: str) -> None:
    assert counted(number, "slot") == said
