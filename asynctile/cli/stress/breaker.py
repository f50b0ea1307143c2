"""The process of scenario `nodes`: a training of two nodes is disturbed while steps go on.

A mishap (mishap.py) happens to one of them, to the line between them or to their disk. The nodes that are left must end in
bounded time, with one line that names the cause, or with a checkpoint if a node was asked to stop. Then nobody may listen any
more. Resumed on one to four nodes, the training must have the bytes of one that nobody disturbed. Covers the trainings and when
mishaps happen. command.py is the training, relay.py the line, disk.py the disk, answers.py the answer.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from asynctile.cli import main
from asynctile.cli.stress.answers import Answer, answer_seeds
from asynctile.cli.stress.command import TrainCommand
from asynctile.cli.stress.disk import SmallDisk
from asynctile.cli.stress.finding import Kind
from asynctile.cli.stress.mishap import MISHAPS, Mishap, NodeEnd, wrong_with
from asynctile.cli.stress.relay import relay
from asynctile.nodes.secret import VARIABLE
from asynctile.nodes.tcp_exchange import WAIT_S

__all__ = ["Breaker"]

#: How often a mishap may come when the training has ended, before its round has failed.
_TRIES = 4
#: The most nodes that resume a training: one for each of its replicas.
_MOST = 4
#: Where nodes compute, and on how many devices each, while they are disturbed and when they resume.
_PLACES = ("--device cpu", "--device cpu", "--device emulated*2")
#: Seconds in which an undisturbed training is over.
_WHOLE_S = WAIT_S + 30.0
_LOOK_EVERY_S = 0.005

Wrong = tuple[Kind, str]


class ForkedNode:
    """A node of a training, or the line between two, forked. log: the file with its output."""

    def __init__(self, number: int, process: int, log: Path) -> None:
        self.number = number
        self.process = process
        self.status: int | None = None
        self._log = log

    def ended(self, within_s: float) -> bool:
        """Wait for the end of the node; return False, and kill it, if it takes longer."""
        if _comes(lambda: self.has_ended, within_s):
            return True
        self.end()
        return False

    def end(self) -> None:
        """Kill the node, unless it has ended."""
        if not self.has_ended:
            os.kill(self.process, signal.SIGKILL)
            _comes(lambda: self.has_ended, _WHOLE_S)

    @property
    def last_line(self) -> str:
        return self._log.read_text(errors="replace").rstrip("\n").rpartition("\n")[2]

    @property
    def has_ended(self) -> bool:
        if self.status is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if process else None
        return self.status is not None

    @property
    def how(self) -> NodeEnd:
        """How the node ended, which it must have."""
        assert self.status is not None
        return NodeEnd(self.number, self.status, self.last_line)


class Breaker:
    """Plays rounds in `folder`: it disturbs one node, resumes the training to its end, and compares."""

    def __init__(self, folder: Path) -> None:
        os.environ[VARIABLE] = "known to all nodes of stress"
        try:
            self._disk: SmallDisk | None = SmallDisk(folder / "disk")
        except OSError:
            self._disk = None  # where nobody may mount one, no disk is full
        self._command = TrainCommand(folder, None if self._disk is None else self._disk.folder)
        began_s = time.monotonic()
        self._whole = self._resumed(2)
        self._took_s = time.monotonic() - began_s

    def play(self, seed: int) -> Answer:
        """Play one round. If its mishap comes too late to matter, play it again with an earlier one, at most a few times."""
        chance = random.Random(f"nodes {seed}")
        mishaps = {name: one.often for name, one in MISHAPS.items() if self._disk is not None or not one.on_disk}
        (name,), who = chance.choices(list(mishaps), list(mishaps.values())), chance.randrange(2)
        wrong, noticed_s, late = self._whole, None, 0
        while wrong is None and noticed_s is None and late < _TRIES:
            after_s, count = chance.uniform(0, self._took_s / (2 << late)), chance.randrange(1, _MOST + 1)
            begun, resumed = chance.choice(_PLACES), chance.choice(_PLACES if count * 2 <= _MOST else _PLACES[:1])
            wrong, noticed_s = self._disturbed(MISHAPS[name], who, after_s, begun)
            late += wrong is None and noticed_s is None
            wrong = wrong or self._resumed(count, resumed)
        if late == _TRIES:
            wrong = wrong or ("failed", f"{late} times, the last time {after_s:.2f} s after the first step, it came when the "
                                        "training had ended, or no node noticed it")
        if wrong is not None:
            whom = "the line" if MISHAPS[name].on_line else "the disk" if MISHAPS[name].on_disk else f"node {who}"
            wrong = wrong[0], f"{whom} was {name}: {wrong[1]}".replace(f"{self._command.folder}/", "")
        noticed = {} if noticed_s is None else {name: noticed_s}
        return Answer(counts={"nodes": dict.fromkeys(noticed, 1), "too_late": late}, most={"noticed_s": noticed}, failure=wrong)

    def _disturbed(self, mishap: Mishap, who: int, after_s: float, place: str) -> tuple[Wrong | None, float | None]:
        """Let a mishap happen to a new training so long after its first step.

        Return what is wrong with how its nodes end, and after how many seconds they had ended; None if it came too late.
        """
        forked, address = self._begun(2, place, relayed=mishap.on_line)
        nodes, victim = forked[:2], forked[2 if mishap.on_line else who]
        metrics = self._command.run / "metrics.jsonl"
        _comes(lambda: (metrics.exists() and metrics.stat().st_size > 0) or any(node.has_ended for node in nodes), _WHOLE_S)
        is_late = _comes(lambda: any(node.has_ended for node in nodes), after_s)
        if not is_late:
            mishap.happens(self._disk if mishap.on_disk else victim.process)
        began_s, within_s = time.monotonic(), _WHOLE_S if is_late else mishap.within_s
        left = [node for node in nodes if is_late or node is not victim or not mishap.is_fatal]
        in_time = _comes(lambda: all(node.has_ended for node in left), within_s)
        took_s = time.monotonic() - began_s
        for one in forked:  # a stopped node, and a line that nobody cut, would stay
            one.end()
        if self._disk is not None:
            self._disk.empty()
        if not in_time:
            said = " and ".join(node.last_line for node in nodes)
            return ("hung", f"not all nodes ended within {within_s:g} s; they said {said!r}"), None
        if not _is_free(address):
            return ("failed", f"{address} is still in use after all nodes have ended"), None
        ends = [node.how for node in left]
        if (why := wrong_with(ends, None if is_late else mishap)) is not None:
            return ("failed", why), None
        return None, took_s if mishap.was_noticed(ends) else None

    def _resumed(self, count: int, place: str = _PLACES[0]) -> Wrong | None:
        """Begin or resume the training on so many nodes; return what is wrong with its outcome."""
        command = self._command
        if count == 1:
            outcome = command.ended(command.train(place))
        else:
            nodes, _ = self._begun(count, place)
            in_time = [node.ended(_WHOLE_S) for node in nodes]
            if not all(in_time):
                command.remove()
                return "hung", f"a training of {count} nodes did not end within {_WHOLE_S:g} s; it said {nodes[0].last_line!r}"
            status = next((node.status for node in nodes if node.status), 0)
            outcome = command.outcome_of(status or 0, " and ".join(node.last_line for node in nodes))
        if outcome != command.outcome:
            return "lost", f"on {count} nodes with {place} it ends with {outcome}, but alone with {command.outcome}"
        return None

    def _begun(self, count: int, place: str, *, relayed: bool = False) -> tuple[list[ForkedNode], tuple[str, int]]:
        """Begin or resume the training on so many nodes; return them, and the address of node 0.

        relayed: node 1 calls node 0 over a relay, which is returned behind the nodes.
        """
        command, address = self._command, _free_address()
        joined, forked = [address] * count, list[ForkedNode]()
        line = socket.create_server(("127.0.0.1", 0)) if relayed else None
        if line is not None:
            joined[1] = line.getsockname()
        for number, (host, port) in enumerate(joined):
            nodes = f"--nodes {count} --join {host}:{port}".split()
            words = [*command.words(place), *nodes] if number == 0 else ["train", *nodes, "--node", str(number)]
            forked.append(self._forked(number, partial(main, words)))
        if line is not None:
            forked.append(self._forked(count, partial(relay, line, address)))
            line.close()
        return forked, address

    def _forked(self, number: int, command: Callable[[], int]) -> ForkedNode:
        log = self._command.folder / f"node-{number}.log"
        return ForkedNode(number, self._command.begin(command, log), log)


def _comes(condition: Callable[[], bool], within_s: float) -> bool:
    """Wait until a condition holds, at most so many seconds; return whether it does."""
    end_s = time.monotonic() + within_s
    while not (holds := condition()) and time.monotonic() < end_s:
        time.sleep(_LOOK_EVERY_S)
    return holds


def _free_address() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        return host, port


def _is_free(address: tuple[str, int]) -> bool:
    try:
        socket.create_server(address).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    answer_seeds(Breaker)
