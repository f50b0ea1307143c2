"""Turns between jobs: whose gates are shut, and that nobody stays behind one.

schedule/test_turns.py tests the choice of turns.
"""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from asynctile.loop.exclusive import Exclusive
from asynctile.loop.turns import Turn, Turns
from asynctile.schedule.allowance import PART
from asynctile.schedule.turns import BURST_S, QUANTUM_S
from asynctile.streams.gate import CLOSED, COPIES, GATE, OPEN, Gate
from asynctile.streams.run_ahead import RunAhead
from asynctile.streams.stream import Stream
from tests.settle import turns as settled
from tests.settle import until


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = 10.0

    def __call__(self):
        return self.now


class Heard:
    """A player, as far as turns know it."""

    def __init__(self):
        self.held = []
        self.works = False

    def hold(self, operations, copies):
        self.held.append((operations, copies))

    def has_work(self, copies):
        return self.works


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def stream():
    made = Stream("compute", threading.Lock())
    made.start()
    yield made
    made.close()


@pytest.fixture
def turns(stream, clock):
    made = Turns(lambda: [stream], clock)
    yield made
    made.close()


def turn(weight=1.0, *, interactive=False, player=None):
    ahead = RunAhead(list, None)
    return Turn(SimpleNamespace(gate=Gate(), player=player, run_ahead=ahead), weight, interactive=interactive)


def levels(*turns):
    return [turn.level for turn in turns]


@pytest.fixture
def timers(monkeypatch):
    """A function that returns the timers that were started in the test and not cancelled."""
    started, call_later = [], asyncio.BaseEventLoop.call_later

    def noted(*args, **more):
        started.append(call_later(*args, **more))
        return started[-1]

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_later", noted)
    return lambda: [handle for handle in started if not handle.cancelled()]


async def test_one_job_alone_meets_no_gate_and_no_timer_runs(turns, timers):
    one = turn()
    turns.begin(one)
    assert levels(one) == [OPEN] and not timers()
    turns.end(one)
    turns.end(one)
    assert levels(one) == [OPEN] and not timers()


async def test_two_jobs_with_work_take_turns_to_compute_and_both_may_copy(turns, clock):
    players = [Heard(), Heard()]
    one, other = (turn(player=player) for player in players)
    for player in players:
        player.works = True
    turns.begin(one)
    turns.begin(other)
    assert levels(one, other) == [OPEN, COPIES] and players[1].held[-1] == (True, False)
    clock.now += 2 * QUANTUM_S
    await until(lambda: levels(one, other) == [COPIES, OPEN])
    assert [player.held[-1] for player in players] == [(True, False), (False, False)]
    turns.end(other)
    assert levels(one, other) == [OPEN, OPEN] and players[0].held[-1] == (False, False)


async def test_a_job_with_nothing_to_compute_is_passed_over_until_it_has(turns, clock):
    players = [Heard(), Heard()]
    one, other = (turn(player=player) for player in players)
    players[1].works = True
    turns.begin(other)
    clock.now += 2 * QUANTUM_S
    turns.begin(one)
    assert levels(one, other) == [OPEN, COPIES], "it has just begun"
    clock.now += 0.002
    await until(lambda: turns.ledger.holder is other)
    assert levels(one, other) == [OPEN, OPEN]
    players[0].works = True
    await until(lambda: turns.ledger.holder is one)
    assert levels(one, other) == [OPEN, COPIES]


async def test_an_interactive_job_holds_back_everything_at_once_until_it_ends(turns):
    one, other, asked = turn(), turn(), turn(interactive=True)
    for each in (one, other, asked):
        turns.begin(each)
    assert levels(one, other, asked) == [CLOSED, CLOSED, OPEN]
    turns.end(asked)
    assert CLOSED not in levels(one, other, asked)


async def test_a_spent_interactive_job_lets_the_others_have_their_turns(turns, clock):
    players = [Heard(), Heard()]
    one, asked = turn(player=players[0]), turn(interactive=True, player=players[1])
    players[0].works = players[1].works = True
    turns.begin(one)
    turns.begin(asked)
    clock.now += BURST_S + QUANTUM_S
    await until(lambda: levels(one, asked) == [OPEN, COPIES])


async def test_streams_are_told_when_a_gate_opens(turns, stream):
    one, asked = turn(), turn(interactive=True)
    turns.begin(asked)

    async def job():
        turns.begin(one)
        return stream.enqueue((), int, ())

    event = await asyncio.create_task(job())
    await until(lambda: stream.waiting)
    assert one.has_work([stream]) and not asked.has_work([stream])
    turns.end(asked)
    await event.landed()
    assert not one.has_work([stream])


async def test_a_job_that_waits_to_issue_wants_its_turn(turns):
    one = turn()
    one.tiers.gate.set(COPIES)
    assert not one.has_work([])
    waiting = asyncio.ensure_future(one.tiers.gate.opened())
    await settled()
    assert one.has_work([])
    one.tiers.gate.set(OPEN)
    await waiting


async def test_where_a_device_orders_its_own_work_everything_enqueued_counts(turns, stream):
    one, held = turn(), threading.Event()
    one.tiers.run_ahead.add(stream.enqueue((), held.wait, ()))
    assert one.has_work([SimpleNamespace()]) and not one.has_work([stream])
    held.set()
    await one.tiers.run_ahead.drain()
    assert not one.has_work([SimpleNamespace()])


async def test_a_player_that_joined_later_is_told(turns):
    one, asked = turn(), turn(interactive=True)
    turns.begin(asked)
    turns.begin(one)
    player = one.tiers.player = Heard()
    turns.renew(one)
    assert player.held == [(True, True)]
    turns.end(one)
    turns.renew(one)
    assert player.held == [(True, True), (False, False)]


async def test_a_job_ends_with_its_hold_and_later_work_is_no_longer_its_own(turns):
    one = turn()
    busy = Exclusive("a share", RunAhead(list, None))
    for error in (None, ValueError, asyncio.CancelledError):
        try:
            async with turns.held(busy, one):
                turns.begin(one)
                assert GATE.get() is one.tiers.gate and [*turns.ledger.parties] == [one]
                turns.begin(one)  # one after the other
                if error is not None:
                    raise error
        except (ValueError, asyncio.CancelledError):
            pass
        assert GATE.get() is None and not turns.ledger.parties and busy.holder is None


async def test_texts_keep_a_part_of_the_previous_jobs_time_only_while_others_wait(turns, clock):
    one, busy, rounds = turn(), Exclusive("a share", RunAhead(list, None)), []

    async def texts(share):
        async with turns.rounds(busy, share) as go_on:
            await settled()
            rounds.append(1)
            clock.now += 1.0
            while go_on(True):
                rounds[-1] += 1
                clock.now += 1.0

    async def job():
        async with turns.held(busy, one):
            await settled()
            clock.now += 4.5 / PART

    await asyncio.gather(job(), texts(one), job(), texts(one), texts(one))
    assert rounds == [5, 5, 1] and busy.holder is None


async def test_closing_opens_all_gates_for_good(turns, timers):
    each = [turn(interactive=True), turn(), turn()]
    for one in each:
        turns.begin(one)
    assert OPEN in levels(*each) and CLOSED in levels(*each) and len(timers()) == 1
    turns.close()
    for one in each:
        turns.begin(one)
    assert levels(*each) == [OPEN] * 3 and not timers()
