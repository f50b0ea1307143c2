"""Cross-entropy composed over vocabulary tiles, with ignored targets, and its gradient."""

import numpy as np
import pytest

from asynctile.kernels.cpu import KERNELS
from asynctile.ops.cross_entropy import IGNORED
from tests.kernels import reference
from tests.kernels.reference import error, poison, random

CASES = [(1, [1]), (3, [17]), (17, [100, 129]), (100, [64, 64, 64, 3]), (5, [768, 768, 1])]


def forward(logits, targets, widths):
    """Return stats and the loss, from logits cut into tiles."""
    stats, number = poison(logits.shape[0], 3), np.full(1, -7.0)
    column = 0
    for index, width in enumerate(widths):
        last = index == len(widths) - 1
        assert number[0] == -7.0  # written on the last tile only
        tile = np.ascontiguousarray(logits[:, column : column + width])
        KERNELS["cross_entropy"](tile, targets, stats, column, 0, index == 0, last, number)
        column += width
    return stats, float(number[0])


def example(rows, widths, scale):
    logits = random(rows, rows, sum(widths), scale=scale)
    targets = np.random.default_rng(5).integers(0, sum(widths), rows).astype(np.int32)
    targets[::3] = IGNORED if rows > 1 else targets[::3]
    return logits, targets


@pytest.mark.parametrize(("rows", "widths"), CASES)
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_forward_and_backward(rows, widths, scale):
    logits, targets = example(rows, widths, scale)
    loss, gradient, lse = reference.cross_entropy(logits, targets, IGNORED)
    stats, found = forward(logits, targets, widths)
    assert found == pytest.approx(loss, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(stats[:, 0], lse, rtol=1e-6, atol=1e-6)
    factor, column, grads = np.array([0.25], np.float32), 0, []
    for width in widths:
        tile = np.ascontiguousarray(logits[:, column : column + width])
        KERNELS["cross_entropy_backward"](targets, stats, factor, tile, column, 0)
        grads.append(tile)
        column += width
    if sum(widths) > 1:
        assert error(np.hstack(grads), 0.25 * gradient) < 2e-5 if scale > 1 else 2e-6
    assert (np.hstack(grads)[targets == IGNORED] == 0).all()


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 5, 16, 40, 79])
def test_values_that_are_not_finite_reach_the_loss(value, place):
    logits, targets = random(1, 9, 80), np.arange(9, dtype=np.int32)
    logits[4, place] = value
    _, loss = forward(logits, targets, [40, 40])
    assert not np.isfinite(loss)


def test_an_ignored_row_keeps_nothing_of_a_nan():
    logits, targets = random(1, 3, 20), np.array([1, IGNORED, 2], np.int32)
    logits[1] = np.nan
    stats, loss = forward(logits, targets, [20])
    assert np.isfinite(loss)
    KERNELS["cross_entropy_backward"](targets, stats, np.ones(1, np.float32), logits, 0, 0)
    assert (logits[1] == 0).all()


@pytest.mark.parametrize(("columns", "padding"), [(1, 7), (9, 7), (1017, 7)])
def test_padding_counts_nowhere_and_has_no_gradient(columns, padding):
    logits, targets = random(columns, 4, columns), np.array([3, 3 + columns - 1, IGNORED, 3 + columns], np.int32)
    padded = np.hstack([logits, np.full((4, padding), np.nan, np.float32)])
    stats, number, scale = np.zeros((2, 4, 3), np.float32), np.zeros((2, 1)), np.array([0.5], np.float32)
    for tile, behind, sums, loss in zip((logits, padded), (0, padding), stats, number, strict=True):
        KERNELS["cross_entropy"](tile, targets, sums, 3, behind, True, True, loss)
        KERNELS["cross_entropy_backward"](targets, sums, scale, tile, 3, behind)
    assert stats[0].tobytes() == stats[1].tobytes() and number[0] == number[1]
    np.testing.assert_array_equal(padded[:, :columns], logits)
    assert not padded[:, columns:].any()
