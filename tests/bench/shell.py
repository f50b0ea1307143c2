"""Commands as a user of bench/ runs them, in a clean environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HARMFUL = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # bench/ restarts its programs where these are set


def clean(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in (*HARMFUL, "OUT", "COMMIT")} | more


def run(*command: str | Path, cwd: Path = ROOT, limit_s: float = 200, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=clean(**more), capture_output=True, text=True, timeout=limit_s, check=False)
