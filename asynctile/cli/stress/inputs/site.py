"""Where damage is done: a path of a copy that belongs to the case, and what is around it.

Covers `Site`, and removing what stands there. What is done to it is content.py, document.py, impostor.py and entries.py.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Site"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """path: the victim, a file or a folder. name: of it in the table. twin: the same outside, whole, never to be touched.

    outside: the folder of all that is never to be touched. chance: all that is random comes from it.
    """

    path: Path
    name: str
    twin: Path
    outside: Path
    chance: random.Random

    def clear(self) -> None:
        """Remove what stands there, to put something else in its place."""
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        else:
            self.path.unlink()
