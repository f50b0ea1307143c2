"""A player runs a schedule in order, each entry once, and tells the loop of stretches, failures and transfers."""

import asyncio
import threading
import time
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.errors import DeviceError
from asynctile.execute.workers.places import FAILED, FREE_AT, OK, PENDING, POISONED, QUEUES
from asynctile.execute.workers.tables import ANY_DEVICE, COPY, DOWNLOAD, OPERATION, PASS, TRANSFER, UPLOAD
from tests.execute.workers.schedules import Marked, fail, number, overdraw, play
from tests.laws import examples, law
from tests.settle import turns, until

#: Bytes a second: a copy of 8 bytes takes 0.1 ms.
RATE = 80e3
#: The kinds of copies over links.
LINKS = (UPLOAD, DOWNLOAD, PASS)


@st.composite
def schedules(draw, devices):
    n = draw(st.integers(1, 60))
    kinds = draw(st.lists(st.sampled_from([OPERATION] * 4 + [*LINKS, COPY, TRANSFER]), min_size=n, max_size=n))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.integers(0, 1))
    edges = {(min(a, b), max(a, b)): travels for a, b, travels in draw(st.lists(pairs, max_size=3 * n)) if a != b}
    borders = sorted(draw(st.lists(st.integers(0, n), max_size=3)))
    stretches = [sum(border <= entry for border in borders) for entry in range(n)]
    failing = [entry for entry in draw(st.sets(st.integers(0, n - 1), max_size=3)) if kinds[entry] in (OPERATION, TRANSFER)]
    reports = draw(st.sets(st.integers(0, n - 1)))
    of = draw(st.lists(st.integers(ANY_DEVICE, devices - 1), min_size=n, max_size=n))
    return Marked(
        kinds, [(a, b, travels) for (a, b), travels in edges.items()], stretches, reports,
        {entry: fail for entry in failing if kinds[entry] == OPERATION},
        devices=[max(device, 0) if kind in LINKS else device for kind, device in zip(kinds, of, strict=True)],
    ), {entry for entry in failing if kinds[entry] == TRANSFER}  # fmt: skip


def expected_statuses(tables, failing):
    """Return the statuses by definition, entry after entry."""
    statuses = np.full(tables.count, OK)
    for entry in range(tables.count):
        if statuses[entry] == OK and entry in failing:
            statuses[entry] = FAILED
        edges = slice(*tables.successors_at[entry : entry + 2])
        if statuses[entry] != OK:
            later = tables.successors[edges][tables.travels[edges] == 1]
            statuses[later] = POISONED
    return statuses


def check_link(state, device, way):
    """Check one direction of a device's link by its own times.

    Copies must come one after another, each must take its time, and none may begin before the entries that it waits for.
    """
    is_here = (state.tables.kinds == way) & (state.tables.devices == device)
    copies = np.flatnonzero(is_here)
    copies = copies[state.statuses[copies] == OK]
    ended = state.ended_at[copies]
    assert (ended >= state.ready_at[copies] + 8 / RATE).all() and (np.diff(np.sort(ended)) >= 7.99 / RATE).all()
    assert ended.max(initial=0) == state.links[FREE_AT, QUEUES * device + way] or not copies.size
    for earlier in np.flatnonzero(np.isin(state.tables.kinds, LINKS)):
        later = state.tables.successors[slice(*state.tables.successors_at[earlier : earlier + 2])]
        later = later[is_here[later] & (state.statuses[later] == OK)]
        assert (state.ready_at[later] >= state.ended_at[earlier]).all()


@pytest.mark.hypothesis  # whose own mark does not see a function inside
@pytest.mark.parametrize(
    ("threads", "rate", "devices"),
    [(1, None, 1), (3, RATE, 1), (2, RATE, 2), (1, RATE, 3),
     law(2, None, 1), law(2, RATE, 1), law(1, None, 2), law(1, RATE, 2)],
)  # fmt: skip
async def test_any_schedule_is_played_in_order_each_entry_once_and_errors_travel_along_edges(players, threads, rate, devices):
    by_hand = threading.Thread  # transfers are answered from threads of their own

    async def run(player, marked, failing):
        tables = marked.tables

        def transfer(entry):
            assert all(marked.marks[other] or statuses[other] != OK for other in marked.before[entry])
            marked.marks[entry] += 1
            by_hand(target=player.transferred, args=(entry, entry not in failing)).start()

        raising = set(np.flatnonzero(tables.address == Marked([OPERATION], kernels={0: fail}).tables.address))
        statuses = expected_statuses(tables, failing | raising)
        player.on_transfer = transfer
        for _ in range(2):
            marked.marks[:] = marked.missing[:] = 0
            finished = player.finished
            await play(player, tables, len(tables.stretch_at) - 1)
            assert (player.statuses == statuses).all()
            assert (marked.marks == (statuses < POISONED)).all()
            ordered = [all(statuses[other] != POISONED for other in before) for before in marked.before]
            assert not marked.missing[np.array(ordered) & (statuses == OK)].any()
            assert player.finished - finished == tables.count
            for device, way in product(range(devices), LINKS) if rate else ():
                check_link(player.state, device, way)

    player = players(threads, rate, devices)

    @examples(15)
    @given(schedules(devices))
    def check(example):
        asyncio.run_coroutine_threadsafe(run(player, *example), loop).result(60)

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(check)


@pytest.mark.parametrize("seed", range(5))
async def test_the_earliest_ready_entry_is_played_first(players, seed):
    """Edges lead forward, so a single worker plays operations in their order, the host's among its own."""
    pairs = np.random.default_rng(seed).integers(0, 60, (70, 2)).tolist()
    edges = {(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}
    devices = np.random.default_rng(seed).integers(ANY_DEVICE, 1, 60)
    marked = Marked([OPERATION] * 60, edges, kernels=dict.fromkeys(range(60), number), devices=devices)
    player = players(threads=1)
    await play(player, marked.tables)
    assert marked.missing.tolist() == list(range(60))


async def test_a_copy_over_the_link_goes_before_operations(players):
    marked, player = Marked([OPERATION, OPERATION, DOWNLOAD, UPLOAD], kernels={0: number, 1: number}), players(threads=1)
    await play(player, marked.tables)
    assert marked.missing.tolist() == [2, 3, 0, 0]


async def test_an_entry_begins_when_its_stretch_is_released_and_not_before(players):
    marked, player = Marked([OPERATION] * 6, [(0, 5)], [0, 0, 1, 1, 2, 2]), players()
    player.attach(marked.tables)
    player.begin()
    await asyncio.sleep(0.01)
    assert not marked.marks.any()
    player.release(0)
    await player.ended(0)[0].landed()
    assert marked.marks.tolist() == [1, 1, 0, 0, 0, 0] and not player.ended(1)[0].done
    player.release(2)
    await player.ended(2)[0].landed()
    await player.ended(1)[0].landed()
    assert marked.marks.tolist() == [1] * 6


async def test_an_awaited_transfer_delays_its_stretch_but_not_the_reports(players):
    marked, player, asked = Marked([OPERATION, TRANSFER, OPERATION], [(1, 2)], reports=[0]), players(), []
    player.on_transfer = asked.append
    player.attach(marked.tables)
    player.begin()
    player.release(0)
    await player.reported(0)[0].landed()
    await until(lambda: asked == [1])
    await turns()
    assert not player.ended(0)[0].done and player.statuses.tolist() == [OK, PENDING, PENDING]
    with pytest.raises(ValueError, match="entry 0 has no transfer under way"):
        player.transferred(0, True)
    player.transferred(1, True)
    await player.ended(0)[0].landed()
    assert marked.marks.tolist() == [1, 0, 1]


@pytest.mark.parametrize("kernel", [fail, overdraw])
async def test_a_failure_is_named_and_only_its_readers_are_skipped(players, kernel):
    marked = Marked([OPERATION] * 5, [(1, 2, 1), (1, 3, 0), (2, 4, 1)], [0, 0, 0, 1, 1], kernels={1: kernel})
    player = players()
    await play(player, marked.tables, 2)
    assert player.statuses.tolist() == [OK, FAILED, POISONED, OK, POISONED]
    assert marked.marks.tolist() == [1, 1, 0, 1, 0]
    for stretch in range(2):
        with pytest.raises(RuntimeError, match="entry 1 failed while it was played"):
            await player.ended(stretch)[0].landed()


async def test_a_limited_link_carries_one_copy_at_a_time_at_its_rate(players):
    kinds = [UPLOAD, DOWNLOAD, UPLOAD, OPERATION, DOWNLOAD]
    marked, player, rate = Marked(kinds, [(2, 3), (3, 4)]), players(rate=8 / 0.02), 8 / 0.02
    began = time.perf_counter()
    await play(player, marked.tables)
    took = time.perf_counter() - began
    assert took >= 3 * 8 / rate, "two copies up, then one down behind the operation"
    assert marked.marks.tolist() == [1] * 5 and not marked.missing.any()
    assert 0 < player.stall_s <= took


async def test_a_player_without_work_uses_no_processor(players):
    marked, player = Marked([OPERATION, UPLOAD]), players()
    await play(player, marked.tables)
    before = time.process_time()
    await asyncio.sleep(0.2)
    assert time.process_time() - before < 0.1


async def test_other_tables_are_played_by_the_same_threads_and_earlier_arrays_are_freed(players):
    player, many = players(), threading.active_count()
    for count in (3, 1, 40):
        marked = Marked([OPERATION] * count)
        await play(player, marked.tables)
        assert marked.marks.tolist() == [1] * count
        assert threading.active_count() == many + 2
    assert player.finished == 44
    player.detach()
    last = Marked([OPERATION])
    await play(player, last.tables)
    assert last.marks == 1


async def test_two_players_at_once_do_not_interfere(players):
    both = [(players(), Marked([OPERATION] * 200, [(i, i + 1) for i in range(199)])) for _ in range(2)]
    await asyncio.gather(*(play(player, marked.tables) for player, marked in both))
    assert all((marked.marks == 1).all() for _, marked in both)


async def test_closing_ends_the_threads_and_informs_the_waiters(players):
    marked, player = Marked([OPERATION, TRANSFER]), players()
    player.on_transfer = lambda entry: None
    player.attach(marked.tables)
    player.begin()
    player.release(0)
    ended = player.ended(0)[0]
    player.close(10)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("asynctile-player")]
    with pytest.raises(DeviceError, match="closed"):
        await ended.landed()
    with pytest.raises(DeviceError, match="closed"):
        player.attach(marked.tables)


async def test_a_transfer_that_cannot_begin_fails_and_says_why(players):
    marked, player, told = Marked([TRANSFER, OPERATION], [(0, 1)]), players(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(str(context["exception"])))
    await play(player, marked.tables)
    assert player.statuses.tolist() == [FAILED, POISONED]
    assert told == ["entry 0 of the schedule is a transfer, which nobody carries out; set on_transfer"]


async def test_a_schedule_that_does_not_fit_a_players_state_is_refused(players):
    marked, player = Marked([OPERATION, TRANSFER], stretches=[0, 1]), players()
    player.on_transfer = lambda entry: None
    with pytest.raises(RuntimeError, match="no tables; attach"):
        player.begin()
    player.attach(marked.tables)
    with pytest.raises(RuntimeError, match=r"call begin\(\) first"):
        player.release(0)
    player.begin()
    with pytest.raises(ValueError, match="stretch 2 was released, but the schedule has 2, counted from 0"):
        player.release(2)
    player.release(0)
    await player.ended(0)[0].landed()
    player.begin()  # its second stretch was never released
    player.release(1)
    with pytest.raises(RuntimeError, match="has not ended"):
        player.begin()
    ended = player.ended(1)[0]
    player.detach()
    with pytest.raises(DeviceError, match="given another schedule"):
        await ended.landed()
