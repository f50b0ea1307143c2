"""Cross-entropy composed over vocabulary tiles, with ignored targets, and its gradient."""

import numpy as np
import pytest

from asynctile.ops.cross_entropy import IGNORED
from tests.kernels import reference
from tests.kernels.values import DTYPES, assert_close, poison, random, typed, wide

CASES = [(1, [1]), (3, [17]), (17, [100, 129]), (70, [64, 64, 64, 3]), (5, [768, 768, 1]), (2, [5003]), (2, [4104, 8])]


def forward(machine, logits, targets, widths):
    """Return stats and the loss, from logits cut into tiles."""
    stats, number = poison(logits.shape[0], 3), np.full(1, -7.0)
    column = 0
    for index, width in enumerate(widths):
        last = index == len(widths) - 1
        assert number[0] == -7.0  # written on the last tile only
        tile = np.ascontiguousarray(logits[:, column : column + width])
        machine.run("cross_entropy", [tile, targets, stats], (column, 0, index == 0, last), number)
        column += width
    return stats, float(number[0])


def backward(machine, logits, targets, stats, widths, factor):
    """Return the gradient, tile after tile."""
    column, grads, scale = 0, [], np.array([factor], np.float32)
    for width in widths:
        tile = np.ascontiguousarray(logits[:, column : column + width])
        machine.run("cross_entropy_backward", [targets, stats, scale, tile], (column, 0))
        grads.append(tile)
        column += width
    return np.hstack(grads)


@pytest.mark.parametrize(("rows", "widths"), CASES)
@pytest.mark.parametrize("scale", [1.0, 40.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_and_backward(machine, rows, widths, scale, dtype):
    logits = random(rows, rows, sum(widths), dtype=dtype, scale=scale)
    targets = np.random.default_rng(5).integers(0, sum(widths), rows).astype(np.int32)
    targets[::3] = IGNORED if rows > 1 else targets[::3]
    loss, gradient, lse = reference.cross_entropy(wide(logits), targets)
    stats, found = forward(machine, logits, targets, widths)
    assert found == pytest.approx(loss, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(stats[:, 0], lse, rtol=1e-6, atol=1e-6)
    grads = backward(machine, logits, targets, stats, widths, 0.25)
    if sum(widths) > 1:
        assert_close(grads, 0.25 * gradient, 2e-5 if scale > 1 else 2e-6)
    assert (wide(grads)[targets == IGNORED] == 0).all()


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 5, 16, 40, 79])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_not_finite_reach_the_loss(machine, value, place, dtype):
    logits, targets = wide(random(1, 9, 80)).astype(np.float32), np.arange(9, dtype=np.int32)
    logits[4, place] = value
    _, loss = forward(machine, typed(logits, dtype), targets, [40, 40])
    assert not np.isfinite(loss)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_ignored_row_keeps_nothing_of_a_nan(machine, dtype):
    logits, targets = wide(random(1, 3, 20)).astype(np.float32), np.array([1, IGNORED, 2], np.int32)
    logits[1] = np.nan
    stats, loss = forward(machine, typed(logits, dtype), targets, [20])
    assert np.isfinite(loss)
    grads = backward(machine, typed(logits, dtype), targets, stats, [20], 1.0)
    assert (grads[1] == 0).all()
    assert np.isfinite(wide(grads)).all()


def test_a_target_counts_in_its_own_tile_only(machine):
    logits, targets, stats = random(1, 3, 40), np.array([5, 25, 39], np.int32), poison(3, 3)
    for column, first in ((0, True), (20, False)):
        tile = np.ascontiguousarray(logits[:, column : column + 20])
        machine.run("cross_entropy", [tile, targets, stats], (column, 0, first, False), np.zeros(1))
        seen = targets < column + 20
        np.testing.assert_array_equal(stats[:, 2], np.where(seen, logits[np.arange(3), targets], 0.0))


def test_more_rows_than_the_summing_block_are_summed(machine):
    logits, targets = random(1, 1100, 3), np.random.default_rng(2).integers(0, 3, 1100).astype(np.int32)
    _, loss = forward(machine, logits, targets, [3])
    assert loss == pytest.approx(reference.cross_entropy(logits, targets)[0], rel=1e-6)


@pytest.mark.parametrize(("columns", "padding"), [(1, 7), (9, 7), (17, 3), (1017, 7), (2047, 1), (3, 0), (13, 240)])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_counts_nowhere_and_has_no_gradient(machine, columns, padding, value, dtype):
    logits = wide(random(columns, 5, columns, dtype=dtype)).astype(np.float32)
    targets = np.array([3, 3 + columns - 1, IGNORED, 3 + columns, 2], np.int32)  # two of them belong to other tiles
    padded = typed(np.hstack([logits, np.full((5, padding), value, np.float32)]), dtype)
    stats, number = np.zeros((2, 5, 3), np.float32), np.zeros((2, 1))
    for tile, behind, sums, loss in zip((typed(logits, dtype), padded), (0, padding), stats, number, strict=True):
        machine.run("cross_entropy", [tile, targets, sums], (3, behind, True, True), loss)
    np.testing.assert_allclose(stats[1], stats[0], rtol=1e-6, atol=1e-6)
    assert number[1, 0] == pytest.approx(number[0, 0], rel=1e-6)
    plain, scale = typed(logits, dtype), np.array([0.5], np.float32)
    machine.run("cross_entropy_backward", [targets, stats[0], scale, plain], (3, 0))
    machine.run("cross_entropy_backward", [targets, stats[0], scale, padded], (3, padding))
    np.testing.assert_array_equal(padded[:, :columns], plain)
    assert not padded[:, columns:].any()
