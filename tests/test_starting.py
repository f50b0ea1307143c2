"""Ctrl-C while the program is still being imported, at several modules; other programs keep their own Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.laws import law
from tests.settle import HANG_S

ROOT = Path(__file__).resolve().parents[1]
#: Python runs this before everything else. It sends Ctrl-C as soon as a module of this name is looked for.
SENDER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # though the tests run in the background of a shell
class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
            len("a handler written in Python runs before the next of its instructions")
sys.meta_path.insert(0, Sender())
"""
#: The script that an installer makes for the entry point.
SCRIPT = "import sys\nfrom asynctile.cli import main\nsys.exit(main())\n"
#: Another program, called as none of ours is.
OTHER = """
import signal
before = signal.getsignal(signal.SIGINT)
try:
    import asynctile.cli
    asynctile.Engine
except KeyboardInterrupt:
    print("stopped")
print(signal.getsignal(signal.SIGINT) is before)
"""


def run(folder: Path, command: list[str], name: str) -> tuple[int, str, str]:
    """Run a process that gets Ctrl-C when it imports `name`; return status, stdout and stderr."""
    return run_with(folder, command, SENDER.format(name=name))


def run_with(folder: Path, command: list[str], before: str) -> tuple[int, str, str]:
    """Run a process that starts with `before`; return status, stdout and stderr."""
    (folder / "sitecustomize.py").write_text(before)
    environment = {"PYTHONPATH": f"{folder}:{ROOT}", "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True,
                          check=False, timeout=HANG_S)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["logging", law("numba"), law("asynctile.cli.arguments"), "asynctile.cli.plan"])
def test_ctrl_c_during_an_import_ends_the_program_silently(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, ["-m", "asynctile", "plan"], name) == (130, "", "")


def test_ctrl_c_ends_the_script_that_an_installer_makes_as_silently(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "asynctile"
    script.write_text(SCRIPT)
    assert run(tmp_path, [str(script), "plan"], "numba") == (130, "", "")


#: Ctrl-C while a command computes that has nothing to save, and once more as the interpreter ends.
TWICE = """
import atexit, os, signal, sys, types
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupted(*_):
    os.kill(os.getpid(), signal.SIGINT)
    len("a handler written in Python runs before the next of its instructions")
sys.modules["asynctile.cli.plan"] = types.SimpleNamespace(run=interrupted)
atexit.register(interrupted)
"""


def test_a_second_ctrl_c_as_the_program_ends_changes_nothing(tmp_path: Path) -> None:
    assert run_with(tmp_path, ["-m", "asynctile", "plan"], TWICE) == (130, "", "")


@pytest.mark.parametrize("name", ["asynctile.share", law("asynctile.cli.arguments")])
def test_ctrl_c_in_another_program_stays_that_programs(tmp_path: Path, name: str) -> None:
    (tmp_path / "service.py").write_text(OTHER)
    assert run(tmp_path, ["-m", "service", "asynctile"], name) == (0, "stopped\nTrue\n", "")
