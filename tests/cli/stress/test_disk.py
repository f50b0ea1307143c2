"""The disk of scenario `nodes`: full for everybody until it is emptied, and seen by nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asynctile.cli.stress import disk as module

_FILLED = """
import runpy, sys
from pathlib import Path

try:
    disk = runpy.run_path(sys.argv[1])["SmallDisk"](Path(sys.argv[2]))
except OSError as error:
    sys.exit(f"no disk: {error}")
file = disk.folder / "file"
disk.fill()
try:
    file.write_bytes(b"x")
except OSError as error:
    print(error)
disk.empty()
file.write_bytes(b"x")
print(file.read_text(), file.owner())
"""


def test_a_small_disk_is_full_until_it_is_emptied_and_its_process_alone_sees_it(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    ran = subprocess.run([sys.executable, "-c", _FILLED, module.__file__, str(disk)], text=True, capture_output=True)
    if ran.stderr.startswith("no disk: "):
        pytest.skip(ran.stderr)
    assert ran.stdout.splitlines() == ["[Errno 28] No space left on device", f"x {tmp_path.owner()}"]
    assert os.listdir(disk) == []
