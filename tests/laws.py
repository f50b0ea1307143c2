"""Cases of an exhaustive test that `make test` leaves to `make laws`, because a few cases already prove the same law."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from itertools import product
from typing import Any

import pytest

#: A case that only `make laws` runs. `make test` tries each device, tier and mode, but neither all their values nor all pairs.
law = partial(pytest.param, marks=pytest.mark.laws)


def covering(*axes: Collection[Any] | Mapping[str, Any]) -> list[Any]:
    """Return every combination of one value from each axis, as cases for pytest.mark.parametrize.

    `make test` runs as many as the longest axis has values: the i-th takes the i-th value of each axis, and shorter axes begin
    again. So each value occurs at least once. All other combinations are laws. An axis is its values, or values by their names.
    """
    named = [list(axis.items()) if isinstance(axis, Mapping) else [(str(value), value) for value in axis] for axis in axes]
    few = [tuple(index % len(axis) for axis in named) for index in range(max(map(len, named)))]
    return [
        pytest.param(
            *(axis[index][1] for axis, index in zip(named, indices, strict=True)),
            id="-".join(axis[index][0] for axis, index in zip(named, indices, strict=True)),
            marks=() if indices in few else pytest.mark.laws,
        )
        for indices in product(*(range(len(axis)) for axis in named))
    ]
