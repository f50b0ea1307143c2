"""What a run has saved: the folder `checkpoints` in that of the run, with step-000200, step-000400, ..., and best.

Covers `Checkpoints`: which there are, where the next goes, which older ones go. What is in one is the trainer's, in
the best the model's; which run they are of is run_folder.py's.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from asynctile.errors import CheckpointError
from asynctile.storage.beside import recover_folders, remove_folder, whole_names
from asynctile.storage.inside import Folder, is_a_link

__all__ = ["NAME", "Checkpoints", "step_of"]

NAME = "checkpoints"
_BEST = "best"
_CHECKPOINT = re.compile(r"step-([0-9]{6,})")


class Checkpoints:
    """Those of the run in `place`. What writes is given that folder held open."""

    def __init__(self, place: Path) -> None:
        self.path = place / NAME

    def all(self) -> list[Path]:
        """Oldest first, without the best; of one that a kill has left beside its place, the place."""
        return [self.path / name for name in sorted(filter(step_of, self._names()), key=step_of)]

    @property
    def has_best(self) -> bool:
        """Whether the best model so far is where it was saved."""
        return _BEST in self._names()

    def _names(self) -> set[str]:
        try:
            with Folder.open(self.path) as folder:
                return whole_names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def new(self, held: Folder, step: int | None) -> Path:
        """Where to save a step, None: the best model so far; CheckpointError if a link stands there."""
        name = _BEST if step is None else f"step-{step:06d}"
        with held.inside(NAME, make=True) as folder:
            if folder.links([name]):
                raise is_a_link(folder.path / name)
            return folder.path / name

    def prune(self, held: Folder, keep: int) -> None:
        """Remove all but the newest, and never the best."""
        for path in self.all()[:-keep]:
            with held.inside(NAME) as folder:
                remove_folder(folder, path.name)

    def recover(self, held: Folder) -> None:
        """Mend and clear away what a kill left."""
        if held.stat(NAME) is not None:
            with held.inside(NAME) as folder:
                recover_folders(folder)

    def check(self, folder: Folder) -> None:
        """Refuse what would end the run at its next save, after its steps. folder: their own, held open."""
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder.fd):
            why = "nothing may be written in it, and a run saves there; change its mode"
            raise PermissionError(errno.EACCES, why, str(folder.path))
        for name in sorted(name for name in folder.names() if name == _BEST or step_of(name)):
            found = folder.stat(name)
            if found is not None and stat.S_ISLNK(found.st_mode):
                raise is_a_link(folder.path / name)
            if found is not None and not stat.S_ISDIR(found.st_mode):
                raise CheckpointError(f"{folder.path / name} is no folder, and may be where a checkpoint must stand; remove it")


def step_of(checkpoint: str) -> int:
    """The step of a checkpoint's folder, 0 if it has another name (one being written begins with a dot)."""
    match = _CHECKPOINT.fullmatch(checkpoint)
    return int(match[1]) if match else 0
