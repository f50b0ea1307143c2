"""Running a page: its Python blocks in order, as one script, and the console blocks that it marks, in one temporary folder.

Covers `Runner` and `script`. A block's lines have the numbers in the script that they have on the page, with blank lines
between. So a traceback names the page, the line and the code.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from tests.docs.pages import ROOT, Block, blocks, commands

#: Runs each page in a fork of itself, named on a line of stdin. Importing asynctile and loading its kernels takes longer than
#: most pages, so it is done once. Writes the process id of each fork to stdout, and its exit status when it has ended.
_RUNNER = """
import json, os, subprocess, sys, warnings

import asynctile.layers
import asynctile.kernels.cpu

def console(line, command):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command])
    if done.returncode:
        sys.exit(f"{page}:{line}: exit status {done.returncode} of: {command}")

asynctile.kernels.cpu.warm()
for line in sys.stdin:
    asked = json.loads(line)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of the threads of BLAS libraries, which handle a fork
        child = os.fork()
    if child == 0:
        break
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()

os.setsid()
os.chdir(asked["work"])
os.environ["PATH"] = asked["path"]
for number, path in enumerate((os.devnull, asked["stdout"], asked["stderr"])):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
page = asked["page"]
exec(compile(asked["script"], page, "exec"), {"__name__": "__main__", "console": console})
"""


def is_run(block: Block) -> bool:
    """Whether a block is part of its page's script."""
    if block.not_run is not None or block.elsewhere is not None:
        return False
    return block.language == "python" or block.run is not None


def script(found: Iterable[Block]) -> str:
    """Return a page's script: line N of it is line N of the page."""
    lines: list[str] = []
    for block in found:
        if not is_run(block):
            continue
        lines += [""] * (block.line - 1 - len(lines))
        if block.language == "python":
            lines += block.text.splitlines()
        else:
            lines.append("; ".join(f"console({line}, {_with(command, block.run)!r})" for line, command in commands(block)))
    return "\n".join(lines) + "\n"


def _with(command: str, options: str | None) -> str:
    """Return a command with options behind the last call of `asynctile train`, `evaluate`, ... in it."""
    if not options:
        return command
    return re.sub(r"((?:^|[;&|] *)asynctile [^;&|<>#]*?)(?= *(?:[;&|<>#]|$))", rf"\1 {options}", command)


class Runner:
    """A process that runs pages, with this checkout's asynctile as the program and as the package. Warnings are errors."""

    def __enter__(self) -> Self:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
        self._process = subprocess.Popen([sys.executable, "-W", "error", "-c", _RUNNER], env=environment, bufsize=0,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, page: Path, folder: Path, timeout: float = 100) -> subprocess.CompletedProcess[str]:
        """Run a page in an empty folder. Raises TimeoutExpired after `timeout` seconds, and kills what the page has started."""
        programs = folder / "bin"
        programs.mkdir()
        program = programs / "asynctile"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m asynctile "$@"\n')
        program.chmod(0o755)
        work, stdout, stderr = folder / "work", folder / "stdout", folder / "stderr"
        work.mkdir()
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        asked = {"page": page, "script": script(blocks(page)), "work": work, "path": path, "stdout": stdout, "stderr": stderr}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked, default=str).encode() + b"\n")
        child = int(self._process.stdout.readline())
        in_time = select.select([self._process.stdout], [], [], timeout)[0]
        if not in_time:
            os.killpg(child, signal.SIGKILL)
        status = int(self._process.stdout.readline())
        if not in_time:
            raise subprocess.TimeoutExpired(str(page), timeout, stdout.read_bytes(), stderr.read_bytes())
        return subprocess.CompletedProcess(str(page), status, stdout.read_text(), stderr.read_text())
