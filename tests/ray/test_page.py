"""The code of docs/how-to/use-ray.md, each block as a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, Block, blocks
from tests.settle import HANG_S

pytest.importorskip("ray", reason="needs the extra `ray` (make ray)")

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
BLOCKS = [block for block in blocks(DOCS / "how-to" / "use-ray.md") if block.language == "python"]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line{block.line}")
def test_the_code_of_the_page_runs(block: Block, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-c", block.text]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=5 * HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr
