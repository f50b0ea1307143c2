"""Planted bugs: with one guard of the tiers removed, stress fails within a few rounds.

Each guard is removed here through a seam; the product has no switch for it. Where a bug is a race, kernels and copies are
slowed down at random, so that the race is lost in every run instead of one in a hundred.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asynctile.cli.stress import cancel, crawl, faults, partner, truncate
from asynctile.cli.stress import round as rounds
from asynctile.cli.stress.lives import Disturber
from asynctile.cli.stress.round import seed_after
from asynctile.device.workers import WorkerDevice
from asynctile.loop.keeper import Keeper
from asynctile.memory.caps import Loan
from asynctile.program.program import Program
from asynctile.storage import spill
from asynctile.storage.container import ContainerFile
from asynctile.storage.pool import Pool
from asynctile.storage.ranking import Ranking
from asynctile.storage.slot import Slot
from tests.cli.conftest import Program as Command

pytestmark = pytest.mark.laws

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(program: Command, tmp_path: Path) -> Run:
    """Return a function that runs one scenario of stress and returns its report; the status must be 1 if anything was found."""

    def call(scenario: str, number: int, seed: int = 1) -> dict[str, Any]:
        report = tmp_path / "report.json"
        status, _, _ = program("stress", "--scenario", scenario, "--rounds", number, "--seed", seed, "--spill", tmp_path,
                               "--report", report)  # fmt: skip
        found: dict[str, Any] = json.loads(report.read_text())
        assert status == (1 if found["failures"] else 0)
        return found

    return call


@pytest.fixture
def slow_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every seventh operation a millisecond slower: code that does not wait for it is early."""
    launch, count = WorkerDevice.launch, 0

    def late(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def work(*args: Any) -> None:
            time.sleep(0.001)
            kernel(*args)

        return work

    def slowed(self: WorkerDevice, operation: Any, arrays: Any, number: Any, waits: Any, after: Any = ()) -> Any:
        nonlocal count
        count += 1
        if count % 7:
            return launch(self, operation, arrays, number, waits, after)
        kernel = self.kernels[operation.kernel]
        self.kernels[operation.kernel] = late(kernel)
        try:
            return launch(self, operation, arrays, number, waits, after)
        finally:
            self.kernels[operation.kernel] = kernel

    monkeypatch.setattr(WorkerDevice, "launch", slowed)


def test_slow_kernels_alone_are_no_bug(run: Run, slow_kernels: None) -> None:
    assert run("random", 6)["failures"] == []


def test_without_the_checksum(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "xxh3_64_intdigest", lambda data: 0)
    monkeypatch.setattr(faults, "TRAINED", 0)
    assert run("faults", 25)["found"]["lost"] > 0


def test_without_the_checksum_zeros_in_a_spill_file_are_taken_for_tiles(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(self: Any, *_: Any, **__: Any) -> None:
        """Write zeros like a hole, but never shorten the file: a short file is an error without checksums too."""
        with open(f"/proc/self/fd/{self._fd}", "r+b") as file:
            file.write(bytes(os.fstat(self._fd).st_size))

    monkeypatch.setattr(truncate.Outsider, "cut", zeros)
    monkeypatch.setattr(truncate, "CUTS", (5, 5))
    assert run("truncate", 2)["failures"] == []
    monkeypatch.setattr(spill, "xxh3_64_intdigest", lambda data: 0)
    assert run("truncate", 3)["found"]["lost"] > 0


def test_a_watchdog_less_patient_than_a_slow_transfer_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawl, "DELAYS_S", (0.4,))
    monkeypatch.setattr(crawl, "STEPS", 2)
    assert run("crawl", 1)["failures"] == []
    monkeypatch.setattr(crawl, "WATCHDOG_S", 0.1)
    assert run("crawl", 1)["found"]["hung"] == 1


def test_without_the_atomic_reservation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiles of an operation evict each other."""
    furthest = Ranking.furthest
    monkeypatch.setattr(Ranking, "furthest", lambda self, pool, held: furthest(self, pool, ()))
    assert run("random", 10)["failures"]


def test_without_the_wait_of_a_write_for_reads(run: Run, slow_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = WorkerDevice.launch

    def early(self: WorkerDevice, operation: Any, arrays: Any, number: Any, waits: Any, after: Any = ()) -> Any:
        pairs = zip(operation.operands, arrays, strict=True)
        writes = [at.written for tile, array in pairs for at in tile.at.values() if at.array is array]
        return launch(self, operation, arrays, number, waits, [event for event in after if event in writes])

    monkeypatch.setattr(WorkerDevice, "launch", early)
    assert run("random", 10)["found"]["lost"] > 0


def test_without_the_event_before_a_slot_is_used_again(
    run: Run, slow_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slot, "guard", property(lambda self: (), lambda self, value: None))
    assert run("random", 10)["found"]["lost"] > 0


def test_without_the_wait_of_a_read_from_disk_for_the_write(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asynctile.memory.spill_link.failed_or_unfinished", lambda *events: ())
    assert run("random", 20)["failures"]


def test_a_kernel_that_never_ends(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "WATCHDOG_S", 0.3)
    launch, gate = WorkerDevice.launch, threading.Event()

    def hangs(self: WorkerDevice, operation: Any, arrays: Any, number: Any, waits: Any, after: Any = ()) -> Any:
        if operation.kernel == "gelu":
            return self._compute.enqueue(waits, gate.wait, (), what=operation)
        return launch(self, operation, arrays, number, waits, after)

    monkeypatch.setattr(WorkerDevice, "launch", hangs)
    found = run("random", 1)
    gate.set()
    assert found["found"]["hung"] == 1
    assert "gelu(" in found["failures"][0]["what"] and "has run on compute" in found["failures"][0]["what"]


@pytest.mark.parametrize("play", [cancel.play_calls, cancel.play_lives])
def test_disturbed_calls_that_leave_something_are_found(run: Run, monkeypatch: pytest.MonkeyPatch, play: Any) -> None:
    monkeypatch.setattr(cancel, "PLAYS", {play: 1})
    found = run("cancel", 1)
    assert found["failures"] == []
    assert found["cancellations"] > 0


def test_a_loan_that_is_not_given_back_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loan, "give_back", lambda self: None)
    monkeypatch.setattr(cancel, "PLAYS", {cancel.play_calls: 1})
    monkeypatch.setattr(Disturber, "draw", lambda self: ["Trainer.save, behind"])  # this call borrows if there is room
    found = run("cancel", 4)
    assert found["found"]["leaked"] > 0
    assert "a loan of" in found["failures"][0]["what"]


def test_a_descriptor_that_stays_open_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    close = ContainerFile.close
    left: list[ContainerFile] = []
    monkeypatch.setattr(ContainerFile, "close", lambda self: left.append(self))
    found = run("random", 4)
    for file in left:
        close(file)
    assert found["found"]["leaked"] > 0
    assert "file descriptor" in found["failures"][0]["what"]


def test_a_slot_that_is_not_given_back_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    give, count = Pool.give, 0

    def forgetful(self: Pool, slot: Slot, *, evicted: bool) -> None:
        nonlocal count
        count += 1
        if count % 50:
            give(self, slot, evicted=evicted)

    monkeypatch.setattr(Pool, "give", forgetful)
    assert run("random", 4)["failures"]


def test_a_weight_that_changes_while_its_step_can_still_be_cancelled_is_found(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark after which a step always runs to its end stands too late: among the updates."""
    def steps_first(calls: Disturber) -> list[str]:
        return ["Trainer.step"] if calls.calls.trainer.step_count < 10 else ["GPT2.loss"]

    monkeypatch.setattr(cancel, "PLAYS", {cancel.play_calls: 1})
    monkeypatch.setattr(Disturber, "draw", steps_first)
    finish = Program.finish

    def late(self: Program) -> Program:
        first = next((i for i, entry in enumerate(self.entries) if getattr(entry, "kernel", "") == "adamw"), None)
        if first is not None:
            self.entries.append(self.entries.pop(self.marks["update"]))
            self.marks["update"] = len(self.entries) - 1
        return finish(self)

    monkeypatch.setattr(Program, "finish", late)
    assert run("cancel", 6)["failures"]


#: A stand-in for the process that damages inputs: one file of a run, one damage, one command, and a bug from the second case
#: on.
_ATTACKED = """
from functools import partial
from asynctile.cli import run_folder
from asynctile.cli.stress import answers
from asynctile.cli.stress.inputs import attacker, content, damage, document, impostor, prey
from asynctile.storage import input, inside

document._DEPTHS = (100_000,)
damage._draw_path = lambda copy, order, chance: copy / "run.json"
damage._draw_kind = lambda site, typed: {damage}
attacker.draw_target = lambda chance: "run"
attacker.draw_order = lambda chance, target: prey.ORDERS["run"][{order}]
play, seen = attacker.Attacker.play, []

def planted(self, seed):
    seen.append(seed)
    if len(seen) == 2:
        {bug}
    return play(self, seed)

attacker.Attacker.play = planted
answers.answer_seeds(attacker.Attacker)
"""
_RESUME, _PLAN = 0, -1


@pytest.mark.parametrize(("damage", "order", "bug", "kind", "what"), [
    ("('linked out', impostor.linked_out)", _RESUME,
     "inside.Folder.check_plain = lambda self, names: None; "
     "inside.Folder.write = lambda self, name, content: (self.path / name).write_bytes(content)",
     "touched", "outside/run/run.json was changed"),
    ("('shared', impostor.shared)", _RESUME,
     "inside.Folder.write = lambda self, name, content: (self.path / name).write_bytes(content)",
     "touched", "outside/run/run.json was changed"),
    ("('stretched', content.stretched)", _PLAN,
     "run_folder.read_file = lambda path: b''.join(iter(partial(open(path, 'rb').read, 1 << 20), b''))", "greedy", "of memory"),
    ("('nested', document.nested)", _PLAN, "input._check_depth = lambda content: None", "failed", "Traceback"),
], ids=["a write through a link", "a write in place", "a read without a limit", "a depth without a limit"])  # fmt: skip
def test_a_command_that_trusts_its_files_is_found(
    run: Run, monkeypatch: pytest.MonkeyPatch, damage: str, order: int, bug: str, kind: str, what: str
) -> None:
    """The same damage without the bug does nothing."""
    monkeypatch.setitem(partner.PROGRAMS, "inputs", ("-c", _ATTACKED.format(damage=damage, order=order, bug=bug)))
    failures = run("inputs", 2)["failures"]
    assert [(failure["seed"], failure["kind"]) for failure in failures] == [(seed_after(1, 1), kind)]
    assert what in failures[0]["what"]


def test_an_engine_that_asks_for_a_thread_as_it_closes_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    last = Keeper.last

    def asks(self: Keeper, work: Callable[[], None], end: Any) -> None:
        try:
            threading.Thread(target=bool, name="asynctile-closing").start()
        finally:
            last(self, work, end)  # otherwise its thread would wait in the tests after this one

    monkeypatch.setattr(Keeper, "last", asks)
    assert any("can't start new thread" in failure["what"] for failure in run("threads", 12, seed=2)["failures"])


_PLANTED_IN_SAVES = """
from asynctile.cli.stress import answers, saver
from asynctile.storage import beside, folder

def removed_first(parent, fresh, final):
    if parent.stat(final) is not None:
        parent.remove_tree(final)
    parent.rename(fresh, final)

#: Names alone: what is written is what it is in either case.
saver._LOOKS |= {{"open", "close", "pwrite", "write", "fsync", "posix_fallocate", "replace", "__exit__"}}
{bug}
answers.answer_seeds(saver.Saver)
"""


@pytest.mark.parametrize(("bug", "kind", "what"), [
    ("folder.swap = removed_first", "lost", "no checkpoint loads"),
    ("folder.recover_folder = lambda parent, name: None", "leaked", "beside the checkpoint"),
], ids=["the older one is removed first", "what a kill has left stays"])  # fmt: skip
def test_a_save_that_may_lose_both_checkpoints_is_found(
    run: Run, monkeypatch: pytest.MonkeyPatch, bug: str, kind: str, what: str
) -> None:
    monkeypatch.setitem(partner.PROGRAMS, "saves", ("-c", _PLANTED_IN_SAVES.format(bug=bug)))
    (failure,) = run("saves", 1)["failures"]
    assert failure["kind"] == kind and what in failure["what"]


#: A stand-in for the process that sends signals: at the given distance, the first a little later in each round.
_PLANTED_IN_SIGNALS = """
import random
from itertools import count
from types import SimpleNamespace
from asynctile.cli import interrupt, session, train
from asynctile.cli.stress import answers, signaller

rounds = count(1)

class Chance(random.Random):
    def __init__(self, seed):
        super().__init__(seed)
        self.drawn = [{apart} / 3, 0.2 * (1 + next(rounds) % 4)]

    def uniform(self, least, most):
        return least + self.drawn.pop() * (most - least)

signaller.random = SimpleNamespace(Random=Chance)
{bug}
answers.answer_seeds(signaller.Signaller)
"""


@pytest.mark.parametrize(("apart", "bug", "kind", "what"), [
    (0.5, "interrupt.AGAIN_S = 0", "lost", "apart ended it at once"),
    (2.5, "interrupt.AGAIN_S = 60", "hung", "did not end it"),
    (2.5, "train.last_words = session.last_words = lambda folder, newest: "
          "f'asynctile train: stopped at once; with --resume, {folder.path} starts at step 7'", "failed", "at step 7"),
], ids=["a pair that ends it at once", "a second signal that ends nothing", "a line that is not true"])  # fmt: skip
def test_a_signal_with_another_effect_than_promised_is_found(
    run: Run, monkeypatch: pytest.MonkeyPatch, apart: float, bug: str, kind: str, what: str
) -> None:
    """In one of four rounds the first signal comes while steps are done; on a busy machine, in one of three tries."""
    monkeypatch.setitem(partner.PROGRAMS, "signals", ("-c", _PLANTED_IN_SIGNALS.format(apart=apart, bug=bug)))
    failures = next(filter(None, (run("signals", 4)["failures"] for _ in range(3))), [])
    assert failures and all(failure["kind"] == kind and what in failure["what"] for failure in failures)


#: A stand-in for the process that disturbs nodes: it only kills them.
_PLANTED_IN_NODES = """
import time
from asynctile.cli.stress import answers, breaker
from asynctile.nodes import peer
from asynctile.nodes.tcp_exchange import TcpExchange

for name in [name for name in breaker.MISHAPS if name != "killed"]:
    del breaker.MISHAPS[name]
on_lost = TcpExchange._on_lost
{bug}
answers.answer_seeds(breaker.Breaker)
"""


@pytest.mark.parametrize(("bug", "kind", "what"), [
    ("peer.at = lambda address: 'somewhere'", "failed", "ended with status 2; it said"),
    ("TcpExchange._on_lost = lambda self, peer, error: (peer.has_left or time.sleep(3), on_lost(self, peer, error))",
     "hung", "not all nodes ended within 2 s"),
], ids=["a lost node that is not named", "a lost node that is noticed late"])  # fmt: skip
def test_a_node_that_does_not_tell_of_a_lost_one_in_time_is_found(
    run: Run, monkeypatch: pytest.MonkeyPatch, bug: str, kind: str, what: str
) -> None:
    monkeypatch.setitem(partner.PROGRAMS, "nodes", ("-c", _PLANTED_IN_NODES.format(bug=bug)))
    (failure,) = run("nodes", 1)["failures"]
    assert failure["kind"] == kind and what in failure["what"]
