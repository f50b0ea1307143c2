"""The standing of a run, which a refusing command must not change: its record, metrics and names of checkpoints.

Covers `RunStanding`, taken before and after, and how the two may differ. bystanders.py covers the files beside the run.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from asynctile.cli.stress.finding import Finding
from asynctile.errors import CheckpointError
from asynctile.storage.folder import decode_json
from asynctile.storage.input import read_file

__all__ = ["RunStanding"]

#: The bytes of a small file; for anything else its inode, size and mtime in ns; None: nothing there.
Content = bytes | tuple[int, int, int] | None


@dataclass(frozen=True)
class RunStanding:
    """The state of a run. checkpoints: sorted names, without unfinished ones; None: no such folder."""

    record: Content
    metrics: Content
    checkpoints: list[str] | None

    @classmethod
    def of(cls, run: Path) -> Self:
        """Return the state of a run, opening only regular files."""
        checkpoints = None
        with suppress(OSError):
            checkpoints = sorted(name for name in os.listdir(run / "checkpoints") if name[0] != ".")
        return cls(_content(run / "run.json"), _content(run / "metrics.jsonl"), checkpoints)

    def expect(self, now: RunStanding, *, whole: bool) -> None:
        """Raise Finding unless `now`, after a refusal, is the same.

        whole: the files were fine, so that the refusal may have come late, as on a full disk. Then the run may have advanced: a
        step that was done is in its metrics, and earlier saves are still there, or newer ones.
        """
        if now == self or (whole and self._has_led_to(now)):
            return
        changed = [what for what in ("record", "metrics", "checkpoints") if getattr(now, what) != getattr(self, what)]
        raise Finding("lost", f"the command refused, but changed the run's {', '.join(changed)}")

    def _has_led_to(self, now: RunStanding) -> bool:
        if not isinstance(self.metrics, bytes) or not isinstance(now.metrics, bytes) or not isinstance(now.record, bytes):
            return False
        if not now.metrics.startswith(self.metrics) or len(now.metrics) == len(self.metrics):
            return False
        try:
            decode_json(now.record, "run.json")
        except CheckpointError:
            return False
        before, after = self.checkpoints or [], now.checkpoints or []
        newest = max(before, default="")
        return max(after, default="") >= newest and all(name in before or name > newest for name in after)


def _content(path: Path) -> Content:
    try:
        found = path.lstat()
    except OSError:
        return None
    if stat.S_ISREG(found.st_mode):
        with suppress(OSError):
            return read_file(path)
    return found.st_ino, found.st_size, found.st_mtime_ns
