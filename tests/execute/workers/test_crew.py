"""The threads of a player end with it or with its interpreter, or are left behind; a forked child has none of them."""

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from asynctile import BudgetError, DeviceError
from asynctile.cli.stress.refusals import refused_threads
from asynctile.execute.workers.player import Player
from asynctile.execute.workers.tables import OPERATION, TRANSFER, UPLOAD
from asynctile.streams.stall import describe
from tests.execute.workers.schedules import Marked, hold, play
from tests.settle import HANG_S, turns, until

#: Ends with players that nobody closed: one at rest, one that waits for a transfer and a copy, one that runs a kernel. With an
#: argument it also does so in a forked child, and closes one player there.
PROGRAM = """
import asyncio, os, sys, threading, time, warnings

warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, which is the case here

from asynctile.execute.workers.player import Player
from asynctile.execute.workers.tables import DOWNLOAD, OPERATION, TRANSFER, UPLOAD
from tests.execute.workers.schedules import Marked, hold, play

async def main():
    players = [Player(2, rate, rate) for rate in (None, 1.0, None)]
    await play(players[0], Marked([OPERATION]).tables)
    for player, marked in ((players[1], Marked([UPLOAD, TRANSFER])), (players[2], Marked([OPERATION], kernels={0: hold}))):
        player.on_transfer = lambda entry: None
        player.attach(marked.tables)
        player.begin()
        player.release(0)
    while not players[2].running:
        await asyncio.sleep(0.001)
    threading.Timer(0.3, marked.marks.fill, (1,)).start()
    return players

loop = asyncio.new_event_loop()
players = loop.run_until_complete(main())
loop.close()
if sys.argv[1:]:
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    else:
        players[0].close()
        sys.exit(3)
print("to its end")
"""


def of_players():
    return [thread for thread in threading.enumerate() if thread.name.startswith("asynctile-player")]


@pytest.fixture
async def held():
    """A player with one thread in a kernel that `marks` holds up, and the marks."""
    player, marked = Player(2, None, None), Marked([OPERATION], kernels={0: hold})
    player.attach(marked.tables)
    player.begin()
    player.release(0)
    await until(lambda: player.running)
    yield player, marked.marks
    marked.marks[0] = 1
    player.close(10)


@pytest.mark.parametrize("refused", range(3))
async def test_if_one_thread_is_refused_the_others_end_and_the_player_plays_once_all_are_there(refused, caplog):
    player = Player(3, None, None)
    with refused_threads(lambda index, _: index % (refused + 1) == refused) as names:
        for _ in range(2):
            with pytest.raises(DeviceError, match="the system refused its threads"):
                player.attach(Marked([OPERATION]).tables)
            assert (of_players(), player.tables, player.waiting) == ([], None, ())
    assert names == [f"asynctile-player-{refused}"] * 2
    (record,) = caplog.records
    assert f"refused the thread asynctile-player-{refused}" in record.getMessage()
    marked = Marked([OPERATION])
    await play(player, marked.tables)
    assert (marked.marks.tolist(), len(of_players())) == ([1], 3)
    player.close()
    assert of_players() == []


async def test_a_player_whose_products_have_no_memory_has_no_threads(monkeypatch, caplog):
    def refuse(count):
        raise BudgetError(f"products in {count} threads take too much", 0)

    player = Player(2, None, None)
    with monkeypatch.context() as patch:
        patch.setattr("asynctile.kernels.cpu.blas_memory.hold", refuse)
        assert not player.hire() and of_players() == []
    assert "products in 2 threads take too much" in caplog.records[0].getMessage()
    assert player.hire()
    player.close()


@pytest.mark.parametrize("forking", [[], ["fork"]])
def test_an_interpreter_ends_although_nobody_closed_its_players(forking):
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *forking]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "to its end\n", "")


async def test_every_device_has_workers_of_its_own_and_all_of_them_end_with_the_player(caplog):
    player = Player(2, None, None, devices=3)
    with refused_threads(lambda index, _: index == 5) as names:
        assert not player.hire() and of_players() == []
    assert names == ["asynctile-player-5"] and len(caplog.records) == 1
    await play(player, Marked([OPERATION] * 3, devices=[0, 1, 2]).tables)
    assert len(of_players()) == 6
    player.close()
    assert of_players() == []


async def test_running_work_is_named_with_its_thread(held):
    player, marks = held
    ((name, (task, since)),) = player.running.items()
    assert name in [thread.name for thread in of_players()] and task.event.what == "entry 0"
    assert 0 <= time.perf_counter() - since < 60
    assert f"entry 0 has run on {name} for" in describe([player], 5)
    marks[0] = 1
    await player.ended(0)[0].landed()
    await until(lambda: not player.running)


async def test_closing_waits_for_running_work_but_no_longer_than_told(held, caplog):
    player, marks = held
    ended = player.ended(0)[0]
    player.close(0.01)
    (left,) = of_players()
    assert [(record.name, record.levelname) for record in caplog.records] == [("asynctile.execute.workers.crew", "WARNING")]
    says = f"thread {left.name} hangs in its work and is left behind; it ends when that work does"
    assert caplog.records[0].getMessage() == says
    assert ended.done and ended.error is not None
    descriptors = os.listdir("/proc/self/fd")
    marks[0] = 1
    await until(lambda: not of_players())
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


async def test_closing_from_another_thread_ends_the_threads_and_takes_the_descriptor_back():
    descriptors = len(os.listdir("/proc/self/fd"))
    player = Player(2, None, None)
    player.on_transfer = lambda entry: None
    player.attach(Marked([OPERATION, UPLOAD, TRANSFER]).tables)
    player.begin()
    player.release(0)
    closing = threading.Thread(target=player.close)
    closing.start()
    closing.join(HANG_S)
    assert not closing.is_alive() and not of_players()
    await turns()
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_a_player_that_is_dropped_ends_its_threads():
    player = Player(2, None, None)
    await play(player, Marked([OPERATION]).tables)
    threads = of_players()
    assert len(threads) == 2
    await turns()  # the loop has the player while a run is under way
    del player
    gc.collect()
    assert not [thread for thread in threads if thread.is_alive()]
