"""Where damage is done: a path in a case's own copy, and its surroundings.

Covers `Site`, and removing what is there. content.py, document.py, impostor.py and entries.py do the damage.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Site"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """The place of one case of damage.

    path: the victim, a file or a folder. name: its name in the table. twin: the undamaged same outside, never to be touched.
    outside: the folder of everything that is never to be touched. chance: source of all randomness.
    """

    path: Path
    name: str
    twin: Path
    outside: Path
    chance: random.Random

    def clear(self) -> None:
        """Remove the victim, to put something else in its place."""
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        else:
            self.path.unlink()
