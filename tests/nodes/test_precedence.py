"""Pieces of weights give way to those of sums, but wait for none that stands still."""

from concurrent.futures import ThreadPoolExecutor

from asynctile.nodes import precedence
from asynctile.nodes.precedence import Precedence
from tests.settle import HANG_S


def goes_with_the_second_of_two(found):
    """Wait while two sums are under way, of which the first ends and then the second."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(found.wait)
        found.end()
        assert not waiting.done()
        found.end()
        waiting.result(HANG_S)


def test_nobody_waits_while_no_sum_is_under_way():
    found = Precedence()
    found.wait()
    found.begin()
    found.end()
    found.wait()


def test_whoever_waits_goes_when_the_last_sum_is_over(monkeypatch):
    monkeypatch.setattr(precedence, "STALL_S", HANG_S)
    found = Precedence()
    for _ in range(2):
        found.begin()
    goes_with_the_second_of_two(found)


def test_nobody_waits_for_sums_that_stand_still_until_one_of_them_moves(monkeypatch):
    monkeypatch.setattr(precedence, "STALL_S", 0.01)
    found = Precedence()
    for _ in range(3):
        found.begin()
    found.wait()
    monkeypatch.setattr(precedence, "STALL_S", HANG_S)
    found.wait()  # at once: they have not moved since
    found.end()
    goes_with_the_second_of_two(found)
