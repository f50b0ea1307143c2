"""The counters of stress: rounds, bytes, faults, cancellations, kills, and the failures with their seeds.

A round is one try of a scenario with a seed of its own (round.py). A disturbed call was cancelled, timed out or abandoned by
its loop (disturb.py). Covers the numbers. The scenarios and conductor.py count, output.py shows them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asynctile import Statistics
from asynctile.cli.stress.disturb import Landed
from asynctile.cli.stress.finding import KINDS, Kind

__all__ = ["Disturbed", "Failure", "Harmed", "Tally"]


@dataclass(frozen=True)
class Failure:
    """A round that went wrong. Its seed draws the same round again, but threads may meet in another order."""

    scenario: str
    seed: int
    kind: Kind
    what: str

    @property
    def command(self) -> str:
        return f"asynctile stress --scenario {self.scenario} --seed {self.seed} --rounds 1"


@dataclass
class Harmed:
    """Cases of damaged inputs. cases, findings: by kind of damage, then by file. slowest_s, most_nbytes: of any command."""

    cases: dict[str, Counter[str]] = field(default_factory=dict)
    findings: dict[str, Counter[str]] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    slowest_s: float = 0.0
    most_nbytes: int = 0

    def add(self, kind: str, file: str, status: int, seconds: float, nbytes: int, *, found: bool) -> None:
        """Count one case.

        kind, file: of the damage. status: exit status of the command. seconds: its duration. nbytes: its memory above that
        of the import. found: whether the case is a finding.
        """
        self.cases.setdefault(kind, Counter())[file] += 1
        if found:
            self.findings.setdefault(kind, Counter())[file] += 1
        self.statuses[status] += 1
        self.slowest_s = max(self.slowest_s, seconds)
        self.most_nbytes = max(self.most_nbytes, nbytes)

    @property
    def total(self) -> int:
        return self.statuses.total()


@dataclass
class Disturbed:
    """How often one public coroutine was disturbed, by kind, by the moment of the call, and by place."""

    kinds: Counter[str] = field(default_factory=Counter)
    landed: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)


@dataclass
class Tally:
    """All counters.

    - rounds, seconds: by scenario. void: rounds of `random` that did not strain the budget, and do not count.
    - injected: transfers that met a fault, by kind. faulted: rounds with such a fault. survived: faulted rounds after which all
    bytes were right. reported: faulted rounds that ended in a typed error. refusals: refused budgets below the floor.
    - cancellations: calls that a disturbance ended: cancelled, timed out or abandoned by their loop. disturbed: the same by
    public coroutine, including calls that had already ended.
    - kills_in_save: the part of `kills` that came during a save. pairs: of signals, by how the training ended.
    - nodes: mishaps of trainings of two nodes, by kind (mishap.py). noticed_s: the most seconds until the other nodes had
    ended, by kind. too_late: mishaps that came when the training had ended; they do not count.
    - steps, played: steps of trainings, and how many were played by a schedule; runs, played_runs: the same for programs.
    - engines: opened ones, by the name of their devices. moved: bytes over each link.
    - worst_loads: the most that `thrash` loaded, as a multiple of the fewest loads possible.
    """

    rounds: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    void: int = 0
    operations: int = 0
    steps: int = 0
    played: int = 0
    runs: int = 0
    played_runs: int = 0
    engines: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    faulted: int = 0
    survived: int = 0
    reported: int = 0
    cancellations: int = 0
    disturbed: defaultdict[str, Disturbed] = field(default_factory=lambda: defaultdict(Disturbed))
    kills: int = 0
    kills_in_save: int = 0
    pairs: Counter[str] = field(default_factory=Counter)
    nodes: Counter[str] = field(default_factory=Counter)
    noticed_s: dict[str, float] = field(default_factory=dict)
    too_late: int = 0
    harmed: Harmed = field(default_factory=Harmed)
    refusals: int = 0
    worst_loads: float = 0.0
    lost_bytes: int = 0
    failures: list[Failure] = field(default_factory=list)

    def add(self, now: Statistics) -> None:
        """Add the statistics of an engine to the totals, at the end of its life."""
        self.moved.update(uploaded=now.uploaded_bytes, downloaded=now.downloaded_bytes, spill_read=now.spill_read_bytes,
                          spill_written=now.spill_written_bytes)
        self.engines[now.device] += 1
        self.operations += now.operations
        self.retries += now.spill_retries

    def count(self, counts: Mapping[str, Any]) -> None:
        """Add to these counters, by name."""
        for name, more in counts.items():
            setattr(self, name, getattr(self, name) + (Counter(more) if isinstance(more, dict) else more))

    def reach(self, most: Mapping[str, Mapping[str, float]]) -> None:
        """Raise the largest values that these counters have met, by name and then by key."""
        for name, values in most.items():
            known: dict[str, float] = getattr(self, name)
            known |= {key: max(value, known.get(key, value)) for key, value in values.items()}

    def step(self, played: bool) -> None:
        """Count a step of a training."""
        self.steps += 1
        self.played += played

    def run(self, played: bool) -> None:
        """Count a run of a program."""
        self.runs += 1
        self.played_runs += played

    def disturb(self, name: str, kind: str, landed: Landed, place: str) -> None:
        """Count a call of `name` that was disturbed, or had ended before its disturbance."""
        self.cancellations += landed in (Landed.BEFORE, Landed.INSIDE)
        if landed is not Landed.NEVER:
            found = self.disturbed[name]
            for counter, key in ((found.kinds, kind), (found.landed, str(landed)), (found.places, place)):
                counter[key] += 1

    def failed(self, kind: Kind) -> int:
        return sum(failure.kind == kind for failure in self.failures)

    def to_json(self) -> dict[str, Any]:
        failures = [{**vars(failure), "command": failure.command} for failure in self.failures]
        return {**vars(self), "harmed": vars(self.harmed), "failures": failures,
                "disturbed": {name: vars(found) for name, found in sorted(self.disturbed.items())},
                "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
                "noticed_s": {kind: round(value, 3) for kind, value in sorted(self.noticed_s.items())},
                "found": {kind: self.failed(kind) for kind in KINDS}}
