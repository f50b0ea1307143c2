"""The checkpoints of a run: its folder `checkpoints` with step-000200, step-000400, ..., and best.

Covers `Checkpoints`: which exist, where the next one goes, which old ones are removed. The trainer writes a checkpoint, the
model writes the best one, and run_folder.py knows the run.
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
    """The checkpoints of the run in `place`. Methods that write take that folder held open."""

    def __init__(self, place: Path) -> None:
        self.path = place / NAME

    def all(self) -> list[Path]:
        """Return the checkpoints without the best, oldest first; one that a kill left beside its path is listed by its path."""
        return [self.path / name for name in sorted(filter(step_of, self._names()), key=step_of)]

    @property
    def has_best(self) -> bool:
        """Whether the best model so far is still where it was saved."""
        return _BEST in self._names()

    def _names(self) -> set[str]:
        try:
            with Folder.open(self.path) as folder:
                return whole_names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def new(self, held: Folder, step: int | None) -> Path:
        """Return where to save a step, or with None the best model so far; CheckpointError if a link is there."""
        name = _BEST if step is None else f"step-{step:06d}"
        with held.inside(NAME, make=True) as folder:
            if folder.links([name]):
                raise is_a_link(folder.path / name)
            return folder.path / name

    def prune(self, held: Folder, keep: int) -> None:
        """Remove all but the `keep` newest checkpoints, and never the best."""
        for path in self.all()[:-keep]:
            with held.inside(NAME) as folder:
                remove_folder(folder, path.name)

    def recover(self, held: Folder) -> None:
        """Repair or remove the unfinished checkpoints that a killed run left. held: the run folder, held open."""
        if held.stat(NAME) is not None:
            with held.inside(NAME) as folder:
                recover_folders(folder)

    def check(self, folder: Folder) -> None:
        """Refuse anything that would end the run at its next save, after its steps. folder: the checkpoints', held open."""
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder.fd):
            why = "this folder is not writable, and a run saves there; change its mode"
            raise PermissionError(errno.EACCES, why, str(folder.path))
        for name in sorted(name for name in folder.names() if name == _BEST or step_of(name)):
            found = folder.stat(name)
            if found is not None and stat.S_ISLNK(found.st_mode):
                raise is_a_link(folder.path / name)
            if found is not None and not stat.S_ISDIR(found.st_mode):
                raise CheckpointError(f"{folder.path / name} is not a folder, but has the name of a checkpoint; remove it")


def step_of(checkpoint: str) -> int:
    """Return the step of a checkpoint's folder name, 0 for any other name (one being written begins with a dot)."""
    match = _CHECKPOINT.fullmatch(checkpoint)
    return int(match[1]) if match else 0
