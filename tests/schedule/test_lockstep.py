"""Prefetch 0: no load runs beside work, in any order that the edges allow."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.schedule.decide import decide
from asynctile.schedule.schedule import DISK, Kind, Scheduled
from tests.laws import examples
from tests.schedule.made import program_by
from tests.schedule.spaces import KINDS, SIZES, space_by


def is_load(entry: Scheduled) -> bool:
    return entry.kind is Kind.UPLOAD or (entry.kind is Kind.TRANSFER and entry.places[0].tier != DISK)


@pytest.mark.parametrize("kind", KINDS)
@examples(20)
@given(seed=st.integers(0, 1 << 32))
def test_each_load_comes_after_all_earlier_work_and_all_work_after_earlier_loads(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    program = program_by(chance, sizes=SIZES, entries=chance.choice((6, 30)))
    schedule = decide(program, space_by(chance, program, kind)._replace(depth=0))
    if schedule is None:
        return
    behind: list[set[int]] = []
    loads, work = set[int](), set[int]()
    for number, entry in enumerate(schedule.entries):
        behind.append(set[int]().union(*({before} | behind[before] for before in (*entry.waits, *entry.after))))
        assert not set(entry.waits) & set(entry.after)
        if is_load(entry):
            assert work <= behind[number]
            loads.add(number)
        elif entry.kind in (Kind.OPERATION, Kind.FETCH):
            assert loads <= behind[number]
            work.add(number)
