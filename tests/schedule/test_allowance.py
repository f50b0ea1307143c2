"""How long texts keep a share that others wait for, in pure numbers of seconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.schedule.allowance import PART, Allowance

STEP_S = 0.4


def rounds(allowance, round_s, *, first=1, others_wait=True):
    """Return the number of rounds that texts get at once, the first `first - 1` without a token, and their duration."""
    now, count, goes_on = 100.0, 0, True
    allowance.begin(now)
    while goes_on:
        now, count = now + round_s, count + 1
        goes_on = allowance.goes_on(now, wrote=count >= first, others_wait=others_wait)
    return count, now - 100.0


def test_after_a_step_texts_get_a_part_of_its_time_and_finish_their_last_round():
    allowance = Allowance()
    allowance.earn(STEP_S)
    count, took_s = rounds(allowance, 0.0007)
    assert count > 50 and PART * STEP_S <= took_s < PART * STEP_S + 0.001
    assert rounds(allowance, 0.0007)[0] == 1, "nothing is left until the next step"
    allowance.earn(STEP_S)
    assert rounds(allowance, 0.0007)[0] == count


def test_unused_time_is_not_saved_up():
    allowance = Allowance()
    for _ in range(100):
        allowance.earn(STEP_S)
    assert rounds(allowance, 0.001)[1] < PART * STEP_S + 0.002


def test_a_token_comes_after_each_job_however_short_and_however_many_rounds_it_takes():
    allowance = Allowance()
    for seconds in (0.0, 1e-6, STEP_S):
        allowance.earn(seconds)
        assert rounds(allowance, 0.03, first=7)[0] == 7


def test_all_texts_of_a_share_have_one_part_between_them():
    allowance = Allowance()
    allowance.earn(STEP_S)
    one, other = rounds(allowance, PART * STEP_S / 1.5), rounds(allowance, PART * STEP_S / 1.5)
    assert (one[0], other[0]) == (2, 1)


def test_if_nobody_waits_texts_give_the_share_back_after_each_round_at_no_cost():
    allowance = Allowance()
    allowance.earn(STEP_S)
    for _ in range(1000):
        assert rounds(allowance, 0.01, others_wait=False)[0] == 1
    assert rounds(allowance, 0.01)[1] == pytest.approx(PART * STEP_S, abs=0.011)


@given(step_s=st.floats(0.001, 2), round_s=st.floats(1e-3, 0.1), first=st.integers(1, 20), steps=st.integers(1, 5))
def test_steps_lose_a_part_of_their_time_and_at_most_the_rounds_to_one_token_and_one_more(step_s, round_s, first, steps):
    allowance, lost_s = Allowance(), 0.0
    for _ in range(steps):
        allowance.earn(step_s)
        lost_s += rounds(allowance, round_s, first=first)[1]
    assert lost_s <= steps * max(PART * step_s + round_s, first * round_s) * (1 + 1e-9)
