"""What `asynctile stress` was asked for, checked before anything runs.

Covers `StressSettings` and the folder that rounds work in. How options are typed is asynctile/cli/arguments.py.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from asynctile.storage.container import ContainerFile

__all__ = ["SCENARIOS", "StressSettings"]

SCENARIOS = (
    "random", "thrash", "train", "faults", "truncate", "crawl", "cancel", "threads", "kill", "saves", "signals", "inputs",
)  # fmt: skip
_MINUTES = 1.0


@dataclass(frozen=True, kw_only=True)
class StressSettings:
    """The run ends with its minutes or when every scenario has had its rounds, whichever comes first."""

    seed: int
    minutes: float | None
    """None: as long as the rounds take."""
    rounds: int | None
    """Of each scenario; None: as many as the time allows."""
    cancellations: int | None
    """At least so many, by rounds of `cancel`; None: as many as those come to."""
    scenarios: tuple[str, ...]
    spill: Path | None
    """The folder given by the user; None: a temporary one."""
    report: Path | None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """From what was typed; ValueError for what cannot be."""
        names = [name for part in given.get("scenario", ()) for name in part.split(",")]
        for name in names:
            if name not in SCENARIOS:
                raise ValueError(f"--scenario {name!r} is not known; expected some of {', '.join(SCENARIOS)}")
        rounds, cancellations = given.get("rounds"), given.get("cancellations")
        minutes = given.get("minutes", _MINUTES if rounds is None and cancellations is None else None)
        spill, report = (None if name not in given else Path(given[name]) for name in ("spill", "report"))
        if spill is not None and not spill.is_dir():
            raise ValueError(f"--spill {spill} is no folder; make it, or name one on the disk that is to be tried")
        if report is not None and (report.is_dir() or not report.absolute().parent.is_dir()):
            raise ValueError(f"--report {report} cannot be written: it is a folder or in none that exists; name a file")
        # By the order of SCENARIOS, each once.
        chosen = tuple(name for name in SCENARIOS if not names or name in names)
        if cancellations is not None and chosen != ("cancel",):
            raise ValueError(f"--cancellations {cancellations} counts what one scenario does: give --scenario cancel with it")
        seed = given["seed"] if "seed" in given else random.SystemRandom().randrange(1 << 32)
        return cls(seed=seed, minutes=minutes, rounds=rounds, cancellations=cancellations, scenarios=chosen, spill=spill,
                   report=report)  # fmt: skip

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A fresh folder, removed afterwards. OSError or TierError if it cannot hold a spill file."""
        parent = self.spill or os.environ.get("TMPDIR") or "."
        folder = Path(tempfile.mkdtemp(prefix="asynctile-stress-", dir=parent))
        try:
            ContainerFile(folder).close()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def to_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed, "minutes": self.minutes, "rounds": self.rounds, "cancellations": self.cancellations,
            "scenarios": list(self.scenarios), "spill": None if self.spill is None else str(self.spill),
        }  # fmt: skip
