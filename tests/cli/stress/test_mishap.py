"""Mishaps of nodes: what they do to a process, how nodes may end then, and rounds whose mishap came too late."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asynctile.cli.stress.breaker import Breaker
from asynctile.cli.stress.mishap import MISHAPS, Mishap, NodeEnd, wrong_with
from asynctile.cli.stress.tally import Tally

LOST_0, LOST_1 = (f"asynctile train: node {node} (127.0.0.1:999) was lost" for node in range(2))
FULL, LIMITED = (f"asynctile train: x: {os.strerror(code)}" for code in (errno.ENOSPC, errno.EFBIG))


@pytest.mark.parametrize("name", MISHAPS)
def test_nodes_that_had_finished_before_a_mishap_are_right_and_show_nothing(name: str) -> None:
    ends = [NodeEnd(node, 0, "100 steps") for node in range(2)]
    assert wrong_with(ends, MISHAPS[name]) is None and not MISHAPS[name].was_noticed(ends)


@pytest.mark.parametrize(("name", "ends"), [
    ("killed", [NodeEnd(1, 2, LOST_0)]), ("stopped", [NodeEnd(0, 2, LOST_1)]),
    ("cut", [NodeEnd(0, 2, LOST_1), NodeEnd(1, 2, LOST_0)]), ("cut", [NodeEnd(0, 0, "100 steps"), NodeEnd(1, 2, LOST_0)]),
    ("silenced", [NodeEnd(0, 2, LOST_1), NodeEnd(1, 2, LOST_0)]), ("asked", [NodeEnd(0, 130, "saved"), NodeEnd(1, 130, "")]),
    ("full", [NodeEnd(0, 2, FULL), NodeEnd(1, 2, f"{LOST_0}: {FULL}")]),
    ("limited", [NodeEnd(0, 2, LIMITED), NodeEnd(1, 2, f"{LOST_0}: {LIMITED}")]),
])  # fmt: skip
def test_nodes_that_name_what_happened_have_noticed_it(name: str, ends: list[NodeEnd]) -> None:
    assert wrong_with(ends, MISHAPS[name]) is None and MISHAPS[name].was_noticed(ends)


@pytest.mark.parametrize(("name", "end"), [
    ("killed", NodeEnd(1, 2, LOST_1)), ("killed", NodeEnd(1, 2, "")), ("killed", NodeEnd(1, 1, LOST_0)),
    ("cut", NodeEnd(0, -9, LOST_1)), ("silenced", NodeEnd(0, 130, LOST_1)), ("limited", NodeEnd(0, 2, LOST_1)),
    ("full", NodeEnd(0, 2, LIMITED)), ("full", NodeEnd(0, 2, os.strerror(errno.ENOSPC))), ("asked", NodeEnd(0, 2, LOST_1)),
    (None, NodeEnd(0, 2, LOST_1)), (None, NodeEnd(0, 130, "saved")),
])  # fmt: skip
def test_a_node_that_ends_otherwise_is_found(name: str | None, end: NodeEnd) -> None:
    wrong = wrong_with([NodeEnd(1 - end.number, 0, ""), end], None if name is None else MISHAPS[name])
    assert wrong is not None and f"node {end.number} ended with status {end.status}; it said {end.said!r}" in wrong
    assert wrong.startswith("before that") is (name is None)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(("name", "status"), [("killed", -signal.SIGKILL), ("asked", -signal.SIGTERM)])
def test_a_signal_that_ends_a_process_comes_to_it(sleeper: subprocess.Popen[bytes], name: str, status: int) -> None:
    MISHAPS[name].happens(sleeper.pid)
    assert sleeper.wait() == status


@pytest.mark.parametrize("name", ["stopped", "silenced"])
def test_a_process_that_is_stopped_lives_on(sleeper: subprocess.Popen[bytes], name: str) -> None:
    MISHAPS[name].happens(sleeper.pid)
    _, status = os.waitpid(sleeper.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def test_limited_files_take_a_line_of_a_log_and_no_checkpoint(sleeper: subprocess.Popen[bytes]) -> None:
    MISHAPS["limited"].happens(sleeper.pid)
    most, _ = resource.prlimit(sleeper.pid, resource.RLIMIT_FSIZE)
    assert 4 << 10 <= most <= 16 << 10


def test_mishaps_that_take_half_a_minute_are_rare_and_kills_are_noticed_in_two_seconds() -> None:
    slow = [mishap.often for mishap in MISHAPS.values() if mishap.within_s > 20]
    assert len(slow) == 2 and sum(slow) * 8 < sum(mishap.often for mishap in MISHAPS.values())
    assert MISHAPS["killed"].within_s <= 2 and max(mishap.within_s for mishap in MISHAPS.values()) <= 60


class Scripted(Breaker):
    """A breaker without trainings. noticed_s: of each try, None for one that came too late. after_s: when each try came."""

    def __init__(self, *noticed_s: float | None, lost: bool = False, disk: Any = None) -> None:
        self._whole, self._took_s, self._disk = None, 8.0, disk
        self._command: Any = SimpleNamespace(folder=Path("/somewhere"))
        self._noticed_s, self._lost = iter(noticed_s), lost
        self.after_s = list[float]()

    def _disturbed(self, mishap: Mishap, who: int, after_s: float, place: str) -> tuple[None, float | None]:
        self.after_s.append(after_s)
        return None, next(self._noticed_s)

    def _resumed(self, count: int, place: str = "") -> tuple[Any, str] | None:
        return ("lost", "/somewhere/run differs") if self._lost else None


def test_a_mishap_that_came_too_late_is_drawn_again_earlier_and_counted_apart() -> None:
    breaker, tally = Scripted(None, None, 0.25), Tally()
    answer = breaker.play(3)
    tally.count(answer.counts)
    tally.reach(answer.most)
    (kind,) = tally.nodes
    assert (tally.nodes, tally.too_late, tally.noticed_s, answer.failure) == ({kind: 1}, 2, {kind: 0.25}, None)
    assert [after_s < most_s for after_s, most_s in zip(breaker.after_s, (4, 2, 1), strict=True)] == [True] * 3


@pytest.mark.parametrize("disk", [None, "a disk"])
def test_a_disk_is_full_only_where_there_is_one(disk: Any) -> None:
    breaker, drawn = Scripted(*[0.1] * 50, disk=disk), set[str]()
    for seed in range(50):
        drawn |= {*breaker.play(seed).counts["nodes"]}
    assert MISHAPS.keys() - drawn == (set() if disk else {"full"})


def test_a_round_whose_mishaps_nobody_ever_notices_fails() -> None:
    answer = Scripted(*[None] * 9).play(3)
    assert answer.counts == {"nodes": {}, "too_late": 4} and answer.most == {"noticed_s": {}}
    assert answer.failure is not None and answer.failure[0] == "failed" and "or no node noticed it" in answer.failure[1]


def test_lost_bytes_are_reported_with_what_happened_before() -> None:
    failure = Scripted(0.1, lost=True).play(3).failure
    assert failure is not None and failure[0] == "lost" and failure[1].endswith(": run differs") and " was " in failure[1]


def test_the_most_seconds_of_each_kind_are_kept() -> None:
    tally = Tally()
    for most in ({"killed": 0.5}, {"killed": 0.25, "cut": 1.0}, {}):
        tally.reach({"noticed_s": most})
    assert tally.noticed_s == {"killed": 0.5, "cut": 1.0}
