"""Scenario `kill`: a training is killed at any moment, some inside a save, and goes on; in the end it has the same bytes.

Covers the side of stress. The process that forks, kills and compares is killer.py, the training victim.py. It is there from the
first round to the last, so that no descriptor comes or goes while other rounds count theirs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.tally import Tally

__all__ = ["Killer"]

#: One thread, and none that a fork would not take along.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Killer:
    """The killing process, with `folder` to work in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self.folder.mkdir()
        with open(self._log, "wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "asynctile.cli.stress.killer", str(self.folder),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                env={**os.environ, **_ENVIRONMENT}, start_new_session=True,
            )  # fmt: skip
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Whatever it is at may be given up: it exists to be killed."""
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended, and told why
        process.stdin.close()
        await process.wait()

    async def play(self, seed: int, tally: Tally) -> None:
        """A round: at least one kill, and the training to its end. Finding if that is not as if nobody had killed it."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{seed}\n".encode())
            await process.stdin.drain()
        except ConnectionError:
            pass  # the empty answer says the same
        answer = await process.stdout.readline()
        if not answer:
            raise Finding("failed", f"the process that kills has ended: {self._log.read_text()[-500:] or 'without a word'}")
        killed = json.loads(answer)
        tally.kills += killed["kills"]
        tally.kills_in_save += killed["in_save"]
        if killed["failure"] is not None:
            raise Finding(*killed["failure"])

    @property
    def _log(self) -> Path:
        return self.folder / "killer.log"
