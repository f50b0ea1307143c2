"""Embeddings over table tiles: ragged tiles, rows that belong to other tiles, tokens that repeat."""

import numpy as np
import pytest

from asynctile.kernels.cuda import embedding
from tests.kernels.values import DTYPES, assert_close, poison, random, wide


def rows_of(table, height):
    return [(row, np.ascontiguousarray(table[row : row + height])) for row in range(0, table.shape[0], height)]


@pytest.mark.parametrize(("seqs", "length", "start", "height", "columns"), [
    (1, 1, 0, 1, 1), (3, 17, 0, 5, 33), (1, 100, 29, 64, 16), (2, 8, 3, 100, 264), (9, 40, 0, 40, 132),
])  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES)
def test_positions(machine, seqs, length, start, height, columns, dtype):
    places = start + length + 2  # a table may have more positions than the sequences
    wpe, rows = random(1, places, columns, dtype=dtype), seqs * length
    x = poison(rows, columns)
    for row, tile in rows_of(wpe, height):
        machine.run("embed_positions", [tile, x], (seqs, start, row))
    positions = np.tile(np.arange(start, start + length), seqs)
    np.testing.assert_array_equal(x, wide(wpe)[positions])
    dx, before = random(2, rows, columns), random(3, places, columns)
    expected = before.copy()
    np.add.at(expected, positions, dx)
    found = []
    for row, tile in rows_of(before, height):
        machine.run("embed_positions_backward", [dx, tile], (seqs, start, row))
        found.append(tile)
    np.testing.assert_array_equal(np.vstack(found), expected)


@pytest.mark.parametrize(("rows", "vocabulary", "height", "columns"), [
    (1, 1, 1, 1), (17, 5, 2, 33), (129, 100, 64, 16), (100, 1000, 300, 132), (5000, 70, 70, 8), (4099, 300, 131, 5),
])  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens(machine, rows, vocabulary, height, columns, dtype):
    wte, x = random(1, vocabulary, columns, dtype=dtype), random(2, rows, columns)
    tokens = np.random.default_rng(3).integers(0, vocabulary, rows).astype(np.int32)
    expected = x + wide(wte)[tokens].astype(np.float32)
    for row, tile in rows_of(wte, height):
        machine.run("embed_tokens", [tokens, tile, x], (row,))
    np.testing.assert_array_equal(x, expected)
    if dtype == "bf16":
        return  # gradients are float32 in every precision
    dx, before = random(4, rows, columns), random(5, vocabulary, columns)
    expected = before.astype(np.float64)
    np.add.at(expected, tokens, dx)
    found = []
    for row, tile in rows_of(before, height):
        machine.run("embed_tokens_backward", [tokens, dx, tile], (row,))
        found.append(tile)
    assert_close(np.vstack(found), expected, 1e-6)


def test_rows_of_a_bf16_table_are_embedded_as_their_float32_copy_is(machine):
    table, tokens = random(1, 30, 33, dtype="bf16"), np.array([3, 29, 3, 0, 70, 11], np.int32)
    before, found = random(2, 6, 33), []
    for tile in (table, wide(table).astype(np.float32)):
        x, placed = before.copy(), before.copy()
        machine.run("embed_tokens", [tokens, tile, x], (2,))
        machine.run("embed_positions", [tile, placed], (2, 4, 5))
        found.append((x.tobytes(), placed.tobytes()))
    assert found[0] == found[1]
    assert before.tobytes() not in found[0]


def test_one_token_everywhere(machine):
    tokens, dx, dwte = np.full(3000, 9, np.int32), random(1, 3000, 12), random(2, 40, 12)
    expected = wide(dwte)
    expected[9] += wide(dx).sum(axis=0)
    before = dwte.copy()
    machine.run("embed_tokens_backward", [tokens, dx, dwte], (0,))
    assert_close(dwte, expected, 1e-5)
    assert np.delete(dwte, 9, axis=0).tobytes() == np.delete(before, 9, axis=0).tobytes()


def test_table_rows_without_a_token_keep_their_bits(machine):
    dwte = np.full((100, 8), -0.0, np.float32)
    dwte[50] = np.nan
    machine.run("embed_tokens_backward", [np.array([7, 120], np.int32), random(1, 2, 8), dwte], (0,))
    assert np.signbit(np.delete(dwte, (7, 50), axis=0)).all()
    assert np.isnan(dwte[50]).all()


def test_nan_reaches_only_its_table_row(machine):
    tokens, dx, dwte = np.arange(40, dtype=np.int32) % 10, random(1, 40, 12), random(2, 10, 12)
    dx[23, 4] = np.nan
    machine.run("embed_tokens_backward", [tokens, dx, dwte], (0,))
    assert np.isnan(dwte[3, 4])
    assert np.isnan(dwte).sum() == 1


def test_more_tokens_than_one_list_holds_are_embedded(machine, monkeypatch):
    monkeypatch.setattr(embedding, "TOKENS", 64)
    tokens = np.random.default_rng(3).integers(0, 30, 200).astype(np.int32)
    dx, dwte = random(1, 200, 12), random(2, 30, 12)
    expected = wide(dwte)
    np.add.at(expected, tokens, dx)
    machine.run("embed_tokens_backward", [tokens, dx, dwte], (0,))
    assert_close(dwte, expected, 1e-6)
