"""The settings of `asynctile stress`, checked before anything runs.

Covers `StressSettings` and the folder that rounds work in. asynctile/cli/arguments.py defines the options.
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
    "random", "thrash", "train", "faults", "truncate", "crawl", "cancel", "threads", "kill", "saves", "signals", "nodes",
    "inputs",
)  # fmt: skip
_MINUTES = 1.0


@dataclass(frozen=True, kw_only=True)
class StressSettings:
    """Settings of a run, which ends with its minutes or when every scenario has had its rounds, whichever comes first."""

    seed: int
    minutes: float | None
    """None: as long as the rounds take."""
    rounds: int | None
    """Rounds of each scenario; None: as many as the time allows."""
    cancellations: int | None
    """At least this many, in rounds of `cancel`; None: no minimum."""
    scenarios: tuple[str, ...]
    spill: Path | None
    """The user's folder; None: a temporary one."""
    report: Path | None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the settings that were typed; ValueError if they cannot work."""
        names = [name for part in given.get("scenario", ()) for name in part.split(",")]
        for name in names:
            if name not in SCENARIOS:
                raise ValueError(f"unknown --scenario {name!r}; expected one or more of {', '.join(SCENARIOS)}")
        rounds, cancellations = given.get("rounds"), given.get("cancellations")
        minutes = given.get("minutes", _MINUTES if rounds is None and cancellations is None else None)
        spill, report = (None if name not in given else Path(given[name]) for name in ("spill", "report"))
        if spill is not None and not spill.is_dir():
            raise ValueError(f"--spill {spill} is not a folder; create it, or name one on the disk to test")
        if report is not None and (report.is_dir() or not report.absolute().parent.is_dir()):
            raise ValueError(f"--report {report} cannot be written: it is a folder, or its folder does not exist; name a file")
        # In the order of SCENARIOS, each once.
        chosen = tuple(name for name in SCENARIOS if not names or name in names)
        if cancellations is not None and chosen != ("cancel",):
            raise ValueError(f"--cancellations {cancellations} needs --scenario cancel and no other; add it, or leave it out")
        seed = given["seed"] if "seed" in given else random.SystemRandom().randrange(1 << 32)
        return cls(seed=seed, minutes=minutes, rounds=rounds, cancellations=cancellations, scenarios=chosen, spill=spill,
                   report=report)  # fmt: skip

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Make a fresh folder and remove it afterwards. OSError or TierError if it cannot hold a spill file."""
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
