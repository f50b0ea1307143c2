"""Running a page: its Python blocks in order, as one script, and the console blocks that it marks, in one temporary folder.

Covers `run_page`. A block's lines have the numbers in the script that they have on the page, with blank lines between. So a
traceback names the page, the line and the code.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.docs.pages import ROOT, Block, blocks, commands

#: Reads the script from stdin and runs it under the name of the page.
_RUNNER = """
import subprocess, sys

def console(line, command):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command])
    if done.returncode:
        sys.exit(f"{page}:{line}: exit status {done.returncode} of: {command}")

page = sys.argv[1]
exec(compile(sys.stdin.read(), page, "exec"), {"__name__": "__main__", "console": console})
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


def run_page(page: Path, folder: Path, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    """Run a page in an empty folder, with this checkout's asynctile as the program and as the package; warnings are errors."""
    programs = folder / "bin"
    programs.mkdir()
    program = programs / "asynctile"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m asynctile "$@"\n')
    program.chmod(0o755)
    work = folder / "work"
    work.mkdir()
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", _RUNNER, str(page)], input=script(blocks(page)), cwd=work, env=environment,
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
