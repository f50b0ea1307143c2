"""A process beside stress that forks: it reads one seed per line and answers each with a line of JSON (answers.py).

Covers its life on the side of stress. It lives from the first round to the last, so that no descriptor comes or goes while
other rounds count theirs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.tally import Tally
from asynctile.storage.documents import finish

__all__ = ["PROGRAMS", "Ended", "Partner"]

#: The program of each scenario that a process plays.
PROGRAMS = {
    "kill": ("-m", "asynctile.cli.stress.killer"), "saves": ("-m", "asynctile.cli.stress.saver"),
    "signals": ("-m", "asynctile.cli.stress.signaller"), "nodes": ("-m", "asynctile.cli.stress.breaker"),
    "inputs": ("-m", "asynctile.cli.stress.inputs.attacker"),
}  # fmt: skip

#: One thread, because a fork takes no other thread along.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


#: Seconds until a killed process is gone, unless it hangs in the kernel.
_KILLED_S = 10.0


class Ended(Finding):
    """The process has ended and answers nothing more."""


class Partner:
    """The process `python -m MODULE FOLDER`, working in `folder`. words: the arguments `-m MODULE`."""

    def __init__(self, words: tuple[str, ...], folder: Path) -> None:
        self.folder = folder
        self._words = words
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self.folder.mkdir()
        with open(self._log, "wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *self._words, str(self.folder),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                env={**os.environ, **_ENVIRONMENT}, start_new_session=True,
            )  # fmt: skip
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the process, whatever it is doing: it exists to be killed."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        await finish(asyncio.to_thread(_kill, process.pid))
        process.stdin.close()
        await process.wait()
        with suppress(TimeoutError):  # until its pipe has closed, which a loop that ends would leave open
            async with asyncio.timeout(_KILLED_S):
                await process.stdout.read()

    async def play(self, seed: int, tally: Tally) -> None:
        """Play the round with this seed, and count what it counted. Finding if it failed."""
        answer = await self.ask(seed)
        tally.count(answer["counts"])
        tally.reach(answer["most"])
        if answer["case"]:
            tally.harmed.add(**answer["case"], found=answer["failure"] is not None)
        if answer["failure"] is not None:
            raise Finding(*answer["failure"])

    async def ask(self, seed: int) -> dict[str, Any]:
        """Return the result of the round with this seed. Ended if the process has ended."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{seed}\n".encode())
            await process.stdin.drain()
        except ConnectionError:
            pass  # the empty answer below says the same
        line = await process.stdout.readline()
        if not line:
            raise Ended("failed", f"its process has ended: {self._log.read_text()[-500:] or 'it wrote no error'}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def _log(self) -> Path:
        return self.folder / "partner.log"


def _kill(pid: int) -> None:
    """Kill a process and its forks, which may have sessions of their own; after that none of them writes."""
    forked: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):  # it has ended and said why
        partner = psutil.Process(pid)
        partner.suspend()  # so that it forks no more
        forked = partner.children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for process in forked:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    end = time.monotonic() + _KILLED_S
    while any(_lives(process) for process in forked) and time.monotonic() < end:
        time.sleep(0.001)


def _lives(process: psutil.Process) -> bool:
    """Return whether a process may still act: a zombie, whose status nobody reads, may not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
