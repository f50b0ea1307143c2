"""Embeddings over table tiles: ragged tiles, rows that belong to other tiles, repeated tokens in order."""

import numpy as np
import pytest

from asynctile.kernels.cpu import KERNELS
from tests.kernels.reference import poison, random


def rows_of(table, height):
    return [(row, np.ascontiguousarray(table[row : row + height])) for row in range(0, table.shape[0], height)]


@pytest.mark.parametrize(("seqs", "length", "start", "height", "columns"), [
    (1, 1, 0, 1, 1), (3, 17, 0, 5, 33), (1, 100, 29, 64, 16), (2, 8, 3, 100, 129),
])  # fmt: skip
def test_positions(seqs, length, start, height, columns):
    wpe, rows = random(1, start + length, columns), seqs * length
    x = poison(rows, columns)
    for row, tile in rows_of(wpe, height):
        KERNELS["embed_positions"](tile, x, seqs, start, row)
    positions = np.tile(np.arange(start, start + length), seqs)
    assert (x == wpe[positions]).all()
    dx, before = random(2, rows, columns), random(3, start + length, columns)
    expected = before.copy()
    np.add.at(expected, positions, dx)
    found = []
    for row, tile in rows_of(before, height):
        KERNELS["embed_positions_backward"](dx, tile, seqs, start, row)
        found.append(tile)
    assert (np.vstack(found) == expected).all()


@pytest.mark.parametrize(("rows", "vocabulary", "height", "columns"), [
    (1, 1, 1, 1), (17, 5, 2, 33), (129, 100, 64, 16), (100, 1000, 300, 129),
])  # fmt: skip
def test_tokens(rows, vocabulary, height, columns):
    wte, x = random(1, vocabulary, columns), random(2, rows, columns)
    tokens = np.random.default_rng(3).integers(0, vocabulary, rows).astype(np.int32)
    expected = x + wte[tokens]
    for row, tile in rows_of(wte, height):
        KERNELS["embed_tokens"](tokens, tile, x, row)
    assert (x == expected).all()
    dx, before = random(4, rows, columns), random(5, vocabulary, columns)
    expected = before.copy()
    np.add.at(expected, tokens, dx)
    found = []
    for row, tile in rows_of(before, height):
        KERNELS["embed_tokens_backward"](tokens, dx, tile, row)
        found.append(tile)
    assert (np.vstack(found) == expected).all()
