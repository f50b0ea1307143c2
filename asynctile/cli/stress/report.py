"""The report of a stress run as JSON: its options, library versions and all counters."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from asynctile import __version__
from asynctile.cli.stress.settings import StressSettings
from asynctile.cli.stress.tally import Tally
from asynctile.layers.checkpoint import surroundings
from asynctile.storage.folder import write_json

__all__ = ["write_report"]


def write_report(path: Path, settings: StressSettings, tally: Tally, *, seconds: float, status: int) -> None:
    """Write or replace `path` as a whole."""
    write_json(path, {
        "asynctile": __version__, "python": sys.version.split()[0], "system": platform.platform(), "cores": os.cpu_count(),
        "libraries": surroundings(), "options": settings.to_json(), "seconds": round(seconds, 1), "status": status,
        **tally.to_json(),
    })  # fmt: skip
