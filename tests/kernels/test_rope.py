"""Rotary embedding against float64, far positions included; `rope_rows` has the bits of `rope`."""

import numpy as np
import pytest

from tests import verbs
from tests.kernels.values import DTYPES, assert_close, random, wide

PLAIN = (10000.0, 0.0, 0.0, 0.0, 0.0)
SCALED = (500000.0, 8.0, 1.0, 4.0, 8192.0)
#: sequences, tokens of each, first position, heads, columns of a head
CASES = [(1, 1, 0, 1, 2), (3, 17, 0, 5, 6), (1, 100, 29, 2, 64), (2, 8, 131000, 1, 128), (9, 5, 7, 3, 80), (1, 70, 4000, 2, 34)]


@pytest.mark.parametrize(("seqs", "length", "start", "heads", "hs"), CASES)
@pytest.mark.parametrize("rotation", [PLAIN, SCALED])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation(machine, seqs, length, start, heads, hs, rotation, inverse, dtype):
    x = random(1, seqs * length, heads * hs, dtype=dtype)
    expected = wide(x)
    verbs.rope(expected, seqs, start, heads, inverse, *rotation)
    machine.run("rope", [x], (seqs, start, heads, inverse, *rotation))
    assert_close(x, expected, 2e-7)


@pytest.mark.parametrize(("seqs", "length", "start", "heads", "hs"), CASES)
@pytest.mark.parametrize("rotation", [PLAIN, SCALED])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_at_their_own_positions_have_the_bits_of_sequences(
    machine, seqs, length, start, heads, hs, rotation, inverse, dtype
):
    x = random(1, seqs * length, heads * hs, dtype=dtype)
    order = np.random.default_rng(2).permutation(len(x))
    positions, mixed = np.tile(np.arange(start, start + length), seqs)[order].astype(np.int32), x[order]
    machine.run("rope", [x], (seqs, start, heads, inverse, *rotation))
    machine.run("rope_rows", [positions, mixed], (heads, inverse, *rotation))
    assert mixed.tobytes() == x[order].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotating_back_restores_the_rows(machine, dtype):
    x = random(1, 60, 96, dtype=dtype)
    before = wide(x)
    for inverse in (False, True):
        machine.run("rope", [x], (2, 5000, 3, inverse, *PLAIN))
    assert np.abs(wide(x) - before).max() < (2.0**-5 if dtype == "bf16" else 1e-6)


def test_scores_of_rotated_rows_depend_on_the_distance_alone(machine):
    q, k = random(1, 1, 64), random(2, 1, 64)

    def score(i, j):
        at, to = q.copy(), k.copy()
        for row, position in ((at, i), (to, j)):
            machine.run("rope_rows", [np.array([position], np.int32), row], (1, False, *PLAIN))
        return float((at * to).sum())

    assert abs(score(7, 3) - score(104, 100)) < 1e-4
    assert abs(score(7, 3) - score(7, 4)) > 1e-2


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_position_and_rows_of_nobody_keep_their_bits(machine, dtype):
    x = random(1, 4, 24, dtype=dtype)
    before = x.copy()
    machine.run("rope_rows", [np.array([-1, 0, 3, -1], np.int32), x], (3, False, *PLAIN))
    assert x[[0, 1, 3]].tobytes() == before[[0, 1, 3]].tobytes()
    assert (x[2] != before[2]).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_reaches_its_pair_alone(machine, dtype):
    x = random(1, 3, 48, dtype=dtype)
    x[1, 19] = 0x7FC0 if dtype == "bf16" else np.nan
    machine.run("rope", [x], (1, 9, 3, False, *PLAIN))
    assert {tuple(place) for place in np.argwhere(np.isnan(wide(x)))} == {(1, 19), (1, 27)}


def test_sine_and_cosine_are_right_to_two_units_in_the_last_place_at_every_angle(machine):
    """One pair of columns turns by its position: (1, 0) becomes (cos, sin)."""
    positions = np.r_[np.arange(4096), np.arange(4096, 131073, 97), 131072].astype(np.int32)
    x = np.tile(np.array([1, 0], np.float32), (len(positions), 1))
    machine.run("rope_rows", [positions, x], (1, False, *PLAIN))
    for found, exact in ((x[:, 0], np.cos(positions.astype(float))), (x[:, 1], np.sin(positions.astype(float)))):
        assert np.max(np.abs(found - exact) / np.spacing(np.abs(exact).astype(np.float32))) < 2


#: f_i of heads of 128 columns under SCALED as transformers 5.24 with torch 2.13 computes them. Those of 29 .. 34 lie between.
KNOWN = {
    1: 0.8146172165870667, 9: 0.1579728126525879, 20: 0.016560440883040428, 28: 0.0032114461064338684,
    29: 0.0021665706299245358, 30: 0.0013718936825171113, 31: 0.0008567514596506953, 32: 0.0005248460220173001,
    33: 0.0003126936499029398, 34: 0.0001785077911335975, 35: 9.556212171446532e-05, 40: 3.428102354519069e-05,
    63: 3.068925877869333e-07,
}  # fmt: skip


def test_frequencies_are_those_of_transformers(machine):
    """Position 2^17 times f_i is exact; one unit in the last place of f_i turns the pair by 2^17 such units."""
    x = np.hstack([np.ones((1, 64), np.float32), np.zeros((1, 64), np.float32)])
    machine.run("rope", [x], (1, 1 << 17, 1, False, *SCALED))
    angles = (1 << 17) * np.float32(list(KNOWN.values())).astype(np.float64)
    for found, exact in ((x[0, list(KNOWN)], np.cos(angles)), (x[0, [64 + i for i in KNOWN]], np.sin(angles))):
        np.testing.assert_allclose(found, exact, rtol=0, atol=2e-7)
