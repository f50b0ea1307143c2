"""An order by chance that is computed place by place: complete, repeatable, and without a pattern."""

from __future__ import annotations

import numpy as np
import pytest

from asynctile.layers.shuffle import shuffled


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 64, 65, 1000, 4096, 70_001])
def test_each_thing_stands_at_one_place(count: int) -> None:
    found = shuffled(np.arange(count), count, 7, (0, 0))
    assert found.dtype == np.int64
    np.testing.assert_array_equal(np.sort(found), np.arange(count))


def test_any_place_is_computed_alone_and_stays_the_same() -> None:
    whole = shuffled(np.arange(1000), 1000, 7, (3, 1))
    for place in (0, 999, 500):
        assert shuffled(np.array([place]), 1000, 7, (3, 1))[0] == whole[place]
    assert shuffled(np.array([], np.int64), 1000, 7, (3, 1)).size == 0
    # Fixed values: a run that is resumed with another numpy must get the order that it would have got.
    assert whole[:6].tolist() == [594, 920, 874, 712, 738, 308]


def test_orders_differ_by_seed_and_counter_and_have_no_pattern() -> None:
    count = 4000
    orders = [shuffled(np.arange(count), count, seed, counter) for seed, counter in ((1, (0, 0)), (2, (0, 0)), (1, (1, 0)),
                                                                                (1, (0, 1)))]  # fmt: skip
    for number, order in enumerate(orders):
        for other in (np.arange(count), *orders[:number]):
            assert abs(np.corrcoef(order, other)[0, 1]) < 0.08 and np.mean(order == other) < 0.005
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.08
        # Steps from one place to the next take all sizes: a shift or a multiple would repeat a few.
        assert len(np.unique(np.diff(order) % count)) > 0.55 * count
