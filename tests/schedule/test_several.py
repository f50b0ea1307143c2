"""Schedules over several devices keep the law of schedules, wherever each entry of a program runs and a step begins."""

from __future__ import annotations

import random

import pytest
from hypothesis import given

from asynctile.program.program import Program
from asynctile.program.spread import spread
from asynctile.schedule.decide import Space, arrive, decide
from tests.laws import examples
from tests.schedule.made import program_by
from tests.schedule.schedules import check_arrival
from tests.schedule.spaces import SIZES, space_by
from tests.schedule.starts import start_by
from tests.schedule.test_decide import SEEDS, check_decided

KINDS = ("device", "device+", "device over ram+", "device+ over ram+")


def drawn(seed: int, kind: str) -> tuple[Program, Space, random.Random]:
    chance = random.Random(f"several {seed} {kind}")
    program = program_by(chance, sizes=SIZES, entries=chance.choice((6, 30, 60)))
    count = chance.randint(2, 4)
    program = spread(program, [chance.randrange(count) for _ in program.entries])
    return program, space_by(chance, program, kind), chance


@pytest.mark.parametrize("kind", KINDS)
@examples(25)
@given(seed=SEEDS)
def test_on_several_devices_entries_find_their_bytes_in_any_order_that_edges_allow(kind: str, seed: int) -> None:
    program, space, chance = drawn(seed, kind)
    check_decided(decide(program, space), program, space, chance)


@pytest.mark.parametrize("kind", KINDS)
@examples(25)
@given(seed=SEEDS)
def test_on_several_devices_a_step_from_any_start_ends_at_the_seam(kind: str, seed: int) -> None:
    program, space, chance = drawn(seed, kind)
    steady = decide(program, space)
    if steady is not None:
        check_arrival(arrive(steady, space, start_by(chance, program, space)), steady, space, chance)
