"""The process of scenario `nodes`: of two nodes of a training, one is killed, stopped or asked to stop while steps go on.

The other one must end in bounded time, with one line that names the lost node, or with a checkpoint where it was asked. Resumed
on one or two nodes, the training must have the bytes of one that nobody disturbed. Covers the disturbance and the judgment.
command.py is the training, answers.py the answer.
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
from asynctile.cli.interrupt import EXIT_STATUS
from asynctile.cli.stress.answers import Answer, answer_seeds
from asynctile.cli.stress.command import TrainCommand
from asynctile.cli.stress.finding import Kind
from asynctile.nodes.secret import VARIABLE
from asynctile.nodes.tcp_exchange import PATIENCE_S, WAIT_S

__all__ = ["Breaker"]

#: What happens to a node, how often, and the seconds in which the other one must be gone.
_HOW = {
    "killed": (signal.SIGKILL, 6, 10.0), "asked": (signal.SIGTERM, 3, 20.0), "stopped": (signal.SIGSTOP, 1, PATIENCE_S + 10),
}  # fmt: skip
#: Seconds in which an undisturbed training is over.
_WHOLE_S = WAIT_S + 30.0
_LOOK_EVERY_S = 0.005

Wrong = tuple[Kind, str]


class ForkedNode:
    """A node of a training, forked. log: the file with its output."""

    def __init__(self, number: int, process: int, log: Path) -> None:
        self.number = number
        self.process = process
        self.status: int | None = None
        self._log = log

    def ended(self, within_s: float) -> bool:
        """Wait for the end of the node; return False, and kill it, if it takes longer."""
        if _comes(lambda: self.has_ended, within_s):
            return True
        os.kill(self.process, signal.SIGKILL)
        _comes(lambda: self.has_ended, _WHOLE_S)
        return False

    @property
    def last_line(self) -> str:
        return self._log.read_text(errors="replace").rstrip("\n").rpartition("\n")[2]

    @property
    def has_ended(self) -> bool:
        if self.status is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if process else None
        return self.status is not None


class Breaker:
    """Plays rounds in `folder`: it disturbs one node, resumes the training to its end, and compares."""

    def __init__(self, folder: Path) -> None:
        os.environ[VARIABLE] = "known to all nodes of stress"
        self._command = TrainCommand(folder)
        began_s = time.monotonic()
        self._whole = self._resumed(2)
        self._took_s = time.monotonic() - began_s

    def play(self, seed: int) -> Answer:
        """Play one round."""
        chance = random.Random(f"nodes {seed}")
        (how,), who = chance.choices(list(_HOW), [weight for _, weight, _ in _HOW.values()]), chance.randrange(2)
        after_s, count = chance.uniform(0, self._took_s), chance.randrange(1, 3)
        wrong = self._whole or self._disturbed(how, who, after_s) or self._resumed(count)
        if wrong is not None:
            wrong = wrong[0], f"node {who} was {how}: {wrong[1]}".replace(f"{self._command.folder}/", "")
        return Answer(counts={"nodes": {how: 1}}, failure=wrong)

    def _disturbed(self, how: str, who: int, after_s: float) -> Wrong | None:
        """Disturb a node of a new training so long after its first step; return what is wrong with the end of the other."""
        metrics, (number, _, within_s) = self._command.run / "metrics.jsonl", _HOW[how]
        nodes = self._begun()
        victim, other = nodes[who], nodes[1 - who]
        _comes(lambda: (metrics.exists() and metrics.stat().st_size > 0) or any(node.has_ended for node in nodes), _WHOLE_S)
        _comes(lambda: any(node.has_ended for node in nodes), after_s)
        if not victim.has_ended:
            os.kill(victim.process, number)
        in_time = other.ended(within_s)
        if how == "stopped" and not victim.has_ended:
            os.kill(victim.process, signal.SIGKILL)
        in_time = victim.ended(within_s) and in_time
        if not in_time:
            return "hung", f"the other node did not end within {within_s:g} s; it said {other.last_line!r}"
        return _judged(how, who, other)

    def _resumed(self, count: int) -> Wrong | None:
        """Begin or resume the training on so many nodes; return what is wrong with its outcome."""
        command = self._command
        if count == 1:
            outcome = command.ended(command.train())
        else:
            nodes = self._begun()
            in_time = [node.ended(_WHOLE_S) for node in nodes]
            if not all(in_time):
                command.remove()
                return "hung", f"a training of two nodes did not end within {_WHOLE_S:g} s; it said {nodes[0].last_line!r}"
            status = next((node.status for node in nodes if node.status), 0)
            outcome = command.outcome_of(status or 0, " and ".join(node.last_line for node in nodes))
        if outcome != command.outcome:
            return "lost", f"on {count} nodes it ends with {outcome}, but alone with {command.outcome}"
        return None

    def _begun(self) -> list[ForkedNode]:
        """Begin or resume the training on two nodes."""
        command, address = self._command, _free_address()
        place = ["--nodes", "2", "--join", address]
        words = [[*command.words(), *place], ["train", *place, "--node", "1"]]
        nodes = []
        for number in range(2):
            log = command.folder / f"node-{number}.log"
            nodes.append(ForkedNode(number, command.begin(partial(main, words[number]), log), log))
        return nodes


def _judged(how: str, who: int, other: ForkedNode) -> Wrong | None:
    """Return what is wrong with how the other node ended."""
    said, status = other.last_line, other.status
    if status == 0 or (how == "asked" and status == EXIT_STATUS):
        return None
    if how != "asked" and status == 2 and f"node {who} (127.0.0.1:" in said:
        return None
    return "failed", f"the other node ended with status {status}; it said {said!r}"


def _comes(condition: Callable[[], bool], within_s: float) -> bool:
    """Wait until a condition holds, at most so many seconds; return whether it does."""
    end_s = time.monotonic() + within_s
    while not (holds := condition()) and time.monotonic() < end_s:
        time.sleep(_LOOK_EVERY_S)
    return holds


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


if __name__ == "__main__":
    answer_seeds(Breaker)
