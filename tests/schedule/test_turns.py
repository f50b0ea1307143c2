"""The ledger of turns, on a simulated machine: one thing at a time, looked at every millisecond."""

from dataclasses import dataclass, field
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.schedule.turns import BURST_S, MOST, PATIENCE_S, QUANTUM_S, Party, TurnLedger
from tests.laws import examples

LOOK = 0.001
WEIGHTS = st.floats(0.25, 4)


@dataclass(eq=False)
class Worker:
    """A party with jobs of `compute` seconds, in bursts of `burst` with pauses of `rest` between, and `gap` between jobs."""

    weight: float = 1.0
    interactive: bool = False
    compute: float = 1e9
    burst: float = 1e9
    rest: float = 0.0
    gap: float = 0.0
    party: Party = field(init=False)
    left: float = field(init=False)
    pause: float = 0.0
    is_in_job: bool = False
    waited: float = 0.0
    longest: float = 0.0

    def __post_init__(self):
        self.party = Party(self.weight, interactive=self.interactive)
        self.left, self.left_of_burst = self.compute, self.burst

    @property
    def wants(self):
        return self.is_in_job and self.pause <= 0


class Machine:
    def __init__(self, *workers):
        self.ledger, self.workers, self.now = TurnLedger(), workers, 100.0
        self.computed = 0.0

    def run(self, seconds, check=lambda: None):
        for _ in range(round(seconds / LOOK)):
            for worker in self.workers:
                if not worker.is_in_job and worker.pause <= 0:
                    worker.is_in_job = True
                    self.ledger.begin(worker.party, self.now)
                    self.decide()
            self.decide()
            check()
            self.step()

    def decide(self):
        wanting = {worker.party for worker in self.workers if worker.wants}
        self.ledger.decide(self.now, wanting.__contains__)

    def step(self):
        self.now += LOOK
        ready = [worker for worker in self.workers if worker.wants]
        running = next((worker for worker in ready if self.ledger.may_compute(worker.party)), None)
        self.computed += LOOK * (running is not None)
        for worker in self.workers:
            worker.pause -= LOOK
            worker.waited = worker.waited + LOOK if worker in ready and worker is not running else 0.0
            worker.longest = max(worker.longest, worker.waited)
        if running is None:
            return
        running.left -= LOOK
        running.left_of_burst -= LOOK
        if running.left <= 0:
            running.left, running.pause, running.is_in_job = running.compute, running.gap, False
            self.ledger.end(running.party, self.now)
        elif running.left_of_burst <= 0:
            running.left_of_burst, running.pause = running.burst, running.rest


def workers(interactive):
    seconds = st.floats(LOOK, 0.04)
    return st.builds(
        Worker, WEIGHTS, interactive, compute=st.floats(LOOK, 0.3) | st.just(1e9), burst=seconds, rest=seconds, gap=seconds
    )


@examples(15)
@given(st.lists(st.tuples(WEIGHTS, st.booleans()), min_size=2, max_size=5))
def test_time_follows_weights_whether_parties_are_interactive_or_not(given):
    machine = Machine(*(Worker(weight, interactive) for weight, interactive in given))
    machine.run(3)
    total = sum(weight for weight, _ in given)
    for worker in machine.workers:
        fair = 3 * worker.weight / total
        assert abs(worker.party.used_s - fair) <= (BURST_S + 2 * QUANTUM_S) * max(1, worker.weight) * len(given)
        assert worker.party.used_s + worker.party.waited_s == pytest.approx(3 - LOOK)


@examples(15)
@given(st.lists(WEIGHTS, min_size=2, max_size=5))
def test_no_party_that_always_wants_a_turn_is_ahead_by_more_than_a_quantum(weights):
    machine = Machine(*map(Worker, weights))

    def check():
        times = [worker.party.virtual_s for worker in machine.workers]
        assert max(times) - min(times) <= (QUANTUM_S + LOOK) / min(weights) + 1e-9

    machine.run(1, check)


@examples(15)
@given(st.lists(workers(st.booleans()), min_size=1, max_size=5))
def test_the_device_idles_only_for_work_that_an_interactive_party_holds_back(given):
    machine = Machine(*given)

    def check():
        wanting = [worker for worker in given if worker.wants]
        holder = machine.ledger.holder
        waits = machine.ledger.alone and machine.now - holder.wanted_at <= PATIENCE_S
        assert not wanting or waits or any(machine.ledger.may_compute(worker.party) for worker in wanting)

    machine.run(0.6, check)


@examples(15)
@given(st.lists(workers(st.booleans()), min_size=2, max_size=5))
def test_no_party_waits_for_long(given):
    machine = Machine(*given)
    machine.run(3)
    weights = [worker.weight for worker in given]
    bound = (BURST_S + 4 * QUANTUM_S) * max(1, sum(weights)) / min(1, *weights) + len(given) * PATIENCE_S
    assert max(worker.longest for worker in given) <= bound


@examples(15)
@given(st.lists(workers(st.just(False)), min_size=1, max_size=4), st.floats(0.05, 0.3))
def test_an_interactive_party_gets_everything_when_it_begins_unless_its_weight_is_spent(given, before):
    machine = Machine(*given)
    machine.run(before)
    asked = Worker(interactive=True)
    machine.ledger.begin(asked.party, machine.now)
    machine.ledger.decide(machine.now, lambda party: False)
    ledger = machine.ledger
    assert ledger.holder is asked.party and ledger.may_copy(asked.party)
    for worker in given:
        assert not ledger.may_compute(worker.party) or not worker.is_in_job
        assert not ledger.may_copy(worker.party) or not worker.is_in_job


def test_a_turn_is_a_quantum_because_of_what_two_jobs_keep_in_caches():
    machine, holders = Machine(Worker(), Worker(2.0)), []
    machine.run(1.5, lambda: holders.append(machine.ledger.holder))
    changes = sum(a is not b for a, b in pairwise(holders))
    assert 2 / 3 * 1.5 / (QUANTUM_S + LOOK) - 2 <= changes <= 2 / 3 * 1.5 / QUANTUM_S + 2


def test_interactive_parties_wait_for_a_quantum_of_each_other():
    machine = Machine(Worker(interactive=True, compute=0.02, gap=0.02), Worker(interactive=True, compute=0.02, gap=0.03))
    machine.run(2)
    assert 0 < max(worker.longest for worker in machine.workers) <= QUANTUM_S + 2 * LOOK


def test_a_spent_interactive_party_takes_turns_and_is_first_again_when_others_have_caught_up():
    asked, training = Worker(interactive=True), Worker()
    machine, alone = Machine(training, asked), []
    machine.run(0.02)
    machine.run(0.5, lambda: alone.append(machine.ledger.alone))
    assert set(alone) == {True, False}
    assert asked.party.used_s - training.party.used_s == pytest.approx(BURST_S, abs=2 * QUANTUM_S)
    assert asked.longest <= QUANTUM_S + 2 * LOOK
    assert training.longest <= BURST_S + QUANTUM_S + 2 * LOOK


@pytest.mark.parametrize("in_job", [False, True])
def test_an_idle_party_saves_up_a_quantum_at_most(in_job):
    """The party is idle without a job, or in a job that waits."""
    busy, idle = Worker(), Worker(burst=LOOK, rest=0.5) if in_job else Worker(compute=LOOK, gap=0.5)
    machine = Machine(busy, idle)
    machine.run(0.4)
    idle.burst = idle.left_of_burst = idle.compute = idle.left = 1e9
    machine.run(1)
    assert busy.longest <= 2 * QUANTUM_S + 2 * LOOK
    assert idle.party.used_s == pytest.approx(0.45, abs=0.02)


def test_consecutive_short_jobs_get_as_much_time_as_one_long_job():
    """A party's claim is not forgotten in the moment between two jobs."""
    machine = Machine(Worker(), Worker(compute=0.007, gap=LOOK / 2))
    machine.run(3)
    long, short = (worker.party.used_s for worker in machine.workers)
    assert short == pytest.approx(long, rel=0.1)


def test_spent_time_is_forgiven_while_nobody_has_a_job():
    asked, training = Worker(interactive=True, compute=0.2, gap=10), Worker(compute=0.01, gap=10)
    machine = Machine(training, asked)
    machine.run(0.3)
    assert asked.party.virtual_s - training.party.virtual_s > BURST_S
    machine.run(1)
    machine.ledger.begin(training.party, machine.now)
    assert asked.party.virtual_s - training.party.virtual_s < BURST_S - QUANTUM_S


def test_one_party_alone_is_never_held_back_and_what_it_uses_counts():
    machine = Machine(Worker(interactive=True, burst=0.01, rest=0.01))

    def check():
        assert machine.ledger.may_compute(machine.workers[0].party) and not machine.ledger.alone

    machine.run(0.5, check)
    assert machine.workers[0].party.used_s == pytest.approx(0.5 - LOOK)


def test_a_holder_that_waits_lets_others_compute_and_has_priority_when_it_goes_on():
    """A job that waits for copies half of its time gets its half, the other gets the rest, and nothing is lost."""
    machine = Machine(Worker(burst=0.01, rest=0.01), Worker())
    machine.run(2)
    waiting, busy = (worker.party.used_s for worker in machine.workers)
    assert machine.computed == pytest.approx(2)
    assert waiting > 0.7
    assert busy > 0.9


@pytest.mark.parametrize("weight", [1e-300, 1e300, 1e-6])
def test_extreme_weights_are_counted_as_a_million(weight):
    machine = Machine(Worker(weight), Worker())
    machine.run(0.1)
    assert all(worker.party.virtual_s < 2 * MOST for worker in machine.workers)
    used = [worker.party.used_s for worker in machine.workers]
    assert used[0] < 2 * QUANTUM_S if weight < 1 else used[1] < 2 * QUANTUM_S


def test_at_the_end_of_a_job_all_others_go_on_until_the_next_decision():
    ledger, parties, clock = TurnLedger(), [Party(), Party()], count(1)
    for party in parties:
        ledger.begin(party, next(clock))
        ledger.decide(next(clock), lambda party: True)
    ledger.end(ledger.holder, next(clock))
    assert all(map(ledger.may_compute, parties))
