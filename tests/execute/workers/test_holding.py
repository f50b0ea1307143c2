"""A player does not begin work that it is told to hold, and loses no call when it is released; for turns between shares."""

import asyncio
import threading

import numpy as np
import pytest

from asynctile.execute.workers.places import ASKED, FREE, LINK, OPENED, PARKED
from asynctile.execute.workers.tables import ANY_DEVICE, DOWNLOAD, OPERATION, TRANSFER, UPLOAD
from asynctile.streams.stall import describe
from tests.execute.workers.schedules import Marked, hold, play
from tests.settle import HANG_S, until


async def asleep(player):
    """Wait until the player's workers have looked for work and found none that may begin."""
    state = player.state
    everybody = player.threads * player.devices
    await until(lambda: state.posts[:, PARKED].sum() == everybody and state.control[OPENED] == state.control[ASKED])


async def test_held_work_of_every_device_begins_only_when_it_is_released(players):
    kinds, devices = [OPERATION] * 4 + [UPLOAD] * 3, [0, 1, 2, ANY_DEVICE, 0, 1, 2]
    marked, player = Marked(kinds, [(0, 2), (4, 5)], devices=devices), players(devices=3)
    player.hold(True, True)
    player.attach(marked.tables)
    player.begin()
    player.release(0)
    ended = player.ended(0)[0]
    await asleep(player)
    assert not marked.marks.any() and player.has_work(False)
    assert sorted(player.state.held) == [0, 1, 3, 4, 6]
    player.hold(True, False)
    await until(lambda: marked.marks[4:].all())
    await asleep(player)
    assert marked.marks.tolist() == [0] * 4 + [1] * 3 and sorted(player.state.held) == [0, 1, 3]
    player.hold(False, False)
    await ended.landed()
    assert (marked.marks == 1).all() and not player.has_work(True) and not marked.missing.any()


async def test_holding_lets_running_work_end_and_nothing_after_it_begin(players):
    marked, player = Marked([OPERATION] * 4, [(0, 1), (0, 2), (0, 3)], kernels={0: hold}), players()
    player.attach(marked.tables)
    player.begin()
    player.release(0)
    ended = player.ended(0)[0]
    await until(lambda: player.running)
    player.hold(True, True)
    assert player.has_work(False)
    marked.marks[0] = 1  # it ends now
    await asleep(player)
    assert marked.marks.tolist() == [1, 0, 0, 0]
    player.hold(False, False)
    await ended.landed()
    assert marked.marks.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("threads", "devices"), [(1, 1), (2, 1), (3, 1), (1, 2), (1, 3), (2, 2)])
async def test_no_call_is_lost_however_often_work_is_held_and_released(players, threads, devices):
    pairs = np.random.default_rng(threads).integers(0, 2000, (900, 2)).tolist()
    edges = {(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}
    kinds = np.random.default_rng(1).choice([OPERATION, OPERATION, UPLOAD, DOWNLOAD], 2000).tolist()
    of = np.random.default_rng(2).integers(0, devices, 2000)
    marked, player = Marked(kinds, edges, devices=of), players(threads, devices=devices)
    playing = asyncio.ensure_future(play(player, marked.tables))
    levels = [(True, True), (False, False), (True, False), (False, False)]
    for turn in range(400):
        player.hold(*levels[turn % 4])
        await asyncio.sleep(0)
    async with asyncio.timeout(HANG_S):
        await playing
    assert (marked.marks == 1).all() and not marked.missing.any()


async def test_a_copy_in_flight_ends_while_everything_is_held(players):
    marked, player = Marked([UPLOAD, UPLOAD]), players(rate=8 / 0.2)  # in flight until long after it is held
    player.attach(marked.tables)
    player.begin()
    player.release(0)
    ended = player.ended(0)[0]
    await until(lambda: marked.marks.any())
    player.hold(True, True)
    await until(lambda: player.state.queues[LINK, UPLOAD] == FREE)
    await asleep(player)
    assert marked.marks.tolist() == [1, 0]
    player.hold(False, False)
    await ended.landed()


async def test_a_stall_names_held_work_before_the_work_that_waits_for_it(players):
    marked, player = Marked([UPLOAD, OPERATION, OPERATION], [(1, 2)]), players()
    player.attach(marked.tables)
    player.hold(True, True)
    player.begin()
    player.release(0)
    await asleep(player)
    says = "nothing runs; entry 1 may not begin: its share has no turn; entry 2 waits for entry 1 and 1 more; "
    assert says in describe([player], 5)
    assert sorted(piece.event.what for piece in player.waiting) == ["entry 0", "entry 1", "entry 2"]
    player.hold(True, False)
    await until(lambda: marked.marks[0])
    await asleep(player)
    assert sorted(piece.event.what for piece in player.waiting) == ["entry 1", "entry 2"]
    player.hold(False, False)
    await player.ended(0)[0].landed()
    assert not player.waiting


async def test_a_player_that_holds_its_work_can_be_closed_and_given_other_tables(players):
    marked, other, player = Marked([OPERATION] * 3), Marked([OPERATION] * 3), players()
    player.attach(marked.tables)
    player.hold(True, True)
    player.begin()
    player.release(0)
    await asleep(player)
    player.attach(other.tables)
    player.begin()
    player.release(0)
    await asleep(player)
    assert not marked.marks.any() and not other.marks.any()
    player.close(10)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("asynctile-player")]


async def test_waiting_for_a_turn_is_no_stall(players):
    marked, player, asked = Marked([TRANSFER, OPERATION]), players(), []
    player.on_transfer = asked.append
    player.hold(True, False)
    player.attach(marked.tables)
    player.begin()
    player.release(0)
    ended = player.ended(0)[0]
    await until(lambda: asked)
    await asleep(player)
    await asyncio.sleep(0.01)
    player.hold(True, True)  # this counts
    assert player.stall_s == 0
    player.hold(False, False)
    await until(lambda: marked.marks[1])
    await asleep(player)
    player.transferred(0, True)
    await ended.landed()
    assert player.stall_s > 0
