"""The position in a caller's data that a checkpoint keeps: an equal copy, or a sentence that names what cannot be kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from asynctile.layers.data_state import kept

GOOD: list[dict[str, Any]] = [
    {}, {"position": 17}, {"a": {"b": [1, 2.5, "x", None, True, [], {}]}}, {"f": np.float64(0.1)}, {"inf": math.inf},
    {"zero": -0.0}, {"": "\ud800"}, {"random": np.random.default_rng(1).bit_generator.state}, {"large": 2**128},
]  # fmt: skip
CIRCLE: dict[str, Any] = {}
CIRCLE["in"] = CIRCLE
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize("state", GOOD, ids=repr)
def test_json_values_are_copied_unchanged(state: dict[str, Any]) -> None:
    found = kept(state)
    assert found == state and found is not state
    assert all(type(a) is type(b) or isinstance(b, np.float64) for a, b in zip(found.values(), state.values(), strict=True))


def test_nan_stays_nan() -> None:
    assert math.isnan(kept({"a": [math.nan]})["a"][0])


@pytest.mark.parametrize(("state", "kind", "sentence"), [
    (None, TypeError, "data_state is None, expected a dict, such as"),
    ([1], TypeError, r"data_state is \[1\], expected a dict"),
    ({1: 2}, ValueError, r"data_state is \{1: 2\} and would come back from a checkpoint as \{'1': 2\}; use strings as keys"),
    ({"a": [{True: 1}]}, ValueError, r"data_state\['a'\]\[0\] is \{True: 1\} and would come back"),
    ({"a": (1, 2)}, ValueError, r"data_state\['a'\] is \(1, 2\) and would come back from a checkpoint as \[1, 2\]; .* lists"),
    ({"a": np.int64(3)}, TypeError, "data_state cannot be written as JSON .*int64"),
    ({"a": np.zeros(3)}, TypeError, "data_state cannot be written as JSON .*ndarray"),
    ({(1, 2): 3}, TypeError, "data_state cannot be written as JSON .*keys must be str"),
    (CIRCLE, ValueError, "data_state could not be read back from a checkpoint .*[Cc]ircular"),
    ({"a": DEEP}, ValueError, "data_state could not be read back from a checkpoint .*recursion"),
    ({"a": 10**5000}, ValueError, "data_state could not be read back from a checkpoint"),
], ids=range(11))  # fmt: skip
def test_a_value_that_would_come_back_different_is_refused(state: Any, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence) as caught:
        kept(state)
    assert "\n" not in str(caught.value)
