"""A recorded program: impossible requests are refused before it runs, and its numbers are found by their labels."""

from __future__ import annotations

import numpy as np
import pytest

from asynctile.ops import copy, fill, gemm
from asynctile.program.program import Program
from tests.by_hand import SHAPE, standing


def test_a_temporary_read_before_it_is_written_is_refused_during_recording() -> None:
    (x,) = standing("x")
    program = Program("two steps")
    early = program.tile("early", SHAPE)
    program.add(fill(x, 1.0))
    program.add(copy(early, x))
    program.add(fill(early, 1.0))
    sentence = r"program two steps: copy\(.*\) reads temporary early, which no earlier entry writes; add the operation"
    with pytest.raises(ValueError, match=sentence):
        program.finish()


def test_an_operation_that_reads_its_own_unwritten_output_is_refused() -> None:
    program = Program("by hand")
    both = program.tile("both", SHAPE)
    program.add(gemm(both, both, both))
    with pytest.raises(ValueError, match="reads temporary both"):
        program.finish()


def test_a_fetch_of_a_temporary_that_nothing_writes_is_refused() -> None:
    program = Program("by hand")
    program.fetch(program.tile("result", SHAPE), "out", (slice(None),))
    with pytest.raises(ValueError, match=r"fetch\(result\) reads temporary result"):
        program.finish()


def test_inputs_and_persistent_tiles_may_be_read_first() -> None:
    (x,) = standing("x")
    program = Program("by hand")
    sum_of = program.tile("sum", SHAPE)
    program.add(gemm(program.input("given", SHAPE, np.float32), x, sum_of))
    program.add(copy(sum_of, x))
    assert program.finish().next_uses[0][2] == 1


def test_numbers_are_found_in_order_by_the_beginning_of_their_labels() -> None:
    program = Program("test")
    for label in ("loss[0]", "norm[a]", "loss[1]", "norm[b]"):
        program.number(label)
    program.finish()
    for _ in range(2):
        assert program.numbers_of("norm") == [1, 3]
        assert program.numbers_of("loss") == [0, 2]
        assert program.numbers_of("other") == []
