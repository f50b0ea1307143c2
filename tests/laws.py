"""Cases and examples that `make test` leaves to `make laws`, because a few already prove the same law."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from itertools import product
from typing import Any

import pytest
from hypothesis import settings

#: A case that only `make laws` runs. `make test` tries each device, tier and mode, but neither all their values nor all pairs.
law = partial(pytest.param, marks=pytest.mark.laws)
#: Examples of a property that `make laws` tries where the test says nothing else. `make test` tries half as many.
EXAMPLES = 40


def examples(count: int, **more: Any) -> settings:
    """Return settings of a property: it tries `count` examples in `make laws`, and half as many in `make test`.

    more: other settings of hypothesis.
    """
    return settings(max_examples=max(1, count * settings().max_examples // EXAMPLES), **more)


def covering(*axes: Collection[Any] | Mapping[str, Any], few: int | None = None) -> list[Any]:
    """Return every combination of one value from each axis, as cases for pytest.mark.parametrize.

    `make test` runs as many as the longest axis has values: the i-th takes the i-th value of each axis, and shorter axes begin
    again. So each value occurs at least once. With `few`, it runs the first `few` of these cases; each branch of the code must
    occur among them. All other combinations are laws. An axis is its values, or values by their names.
    """
    named = [list(axis.items()) if isinstance(axis, Mapping) else [(str(value), value) for value in axis] for axis in axes]
    tried = [tuple(index % len(axis) for axis in named) for index in range(few or max(map(len, named)))]
    return [
        pytest.param(
            *(axis[index][1] for axis, index in zip(named, indices, strict=True)),
            id="-".join(axis[index][0] for axis, index in zip(named, indices, strict=True)),
            marks=() if indices in tried else pytest.mark.laws,
        )
        for indices in product(*(range(len(axis)) for axis in named))
    ]
