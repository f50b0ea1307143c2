"""The verdict of `asynctile plan`: whether a step fits on a machine, and how long it takes there.

Covers `Verdict`, and `placed_on`, the ways in which a run would be placed on a machine that need not be here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from asynctile.cli.option import flag, typed
from asynctile.cli.options import Options
from asynctile.cli.search import LEAST_GAIN, Found, UnderCap
from asynctile.layers.plan import Plan
from asynctile.measure.hardware import CORES, GPU, Hardware
from asynctile.storage.sizes import format_size

__all__ = ["Verdict", "placed_on"]

#: The folder that a plan names when it takes the disk of a machine.
_FOLDER = "DIR"
#: How the names of devices begin, by the kind of a machine. Cores also emulate devices.
_DEVICES = {GPU: ("cuda",), CORES: ("cpu", "emulated")}


def placed_on(options: Options, hardware: Hardware) -> Iterator[Options]:
    """Yield the options with the devices and memory of a machine, first without its disk, then with it.

    Only what was not typed is filled in. ValueError for an option that the machine cannot meet.
    """
    device = hardware.first(max(1, options.replicas // options.nodes)) if options.device == "auto" else options.device
    if not device.startswith(_DEVICES[hardware.kind]):
        raise ValueError(f"--device {device} is not on {hardware.title}, which has {hardware.device}; leave it out")
    memory = _within("--device-memory", options.device_memory, hardware.memory)
    host = _within("--host-memory", options.host_memory, hardware.ram)
    placed = replace(options, device=device, device_memory=memory,
                     host_memory=host if device == "cpu" or options.spill else options.host_memory)  # fmt: skip
    yield placed
    if options.spill is None and hardware.disk:
        yield replace(placed, host_memory=host, spill=_FOLDER)


def _within(flag: str, asked: int | None, most: int | None) -> int | None:
    """Return what was asked for, or all there is; None if neither is known."""
    if asked is not None and most is not None and asked > most:
        raise ValueError(f"{flag} of {format_size(asked)} is above the {format_size(most)} that the machine has "
                         "for tiles; choose less, or leave it out")
    return most if asked is None else asked


@dataclass(frozen=True)
class Verdict:
    """What a plan comes to.

    options: as they were planned. hardware: the machine, None for this one. searched: whether faster settings were searched;
    found: those, None if there are none. caps: the step with these settings under other caps than those that were typed.
    """

    plan: Plan
    options: Options
    hardware: Hardware | None
    searched: bool = False
    found: Found | None = None
    caps: tuple[UnderCap, ...] = ()

    @property
    def steps(self) -> int:
        """The steps of the run."""
        return self.options.steps

    @property
    def spill(self) -> bool:
        """Whether the plan takes the disk."""
        return self.options.spill is not None

    @property
    def missing(self) -> str:
        """What the machine has too little of, and by how much; empty if the step fits."""
        if self.hardware is None:
            return ""
        needs = [("RAM", self.plan.host_bytes, self.hardware.ram)]
        if self.plan.spill_bytes:
            needs.append(("disk", self.plan.spill_bytes, self.hardware.disk))
        return "; ".join(f"tiles need {format_size(nbytes)} of {what}, {format_size(nbytes - most)} more than there is"
                         for what, nbytes, most in needs if nbytes > most)  # fmt: skip

    def lines(self) -> list[tuple[str, str]]:
        """Return the verdict as (name, value) rows."""
        where = [] if self.hardware is None else [("machine", self.hardware.title)]
        if missing := self.missing:
            return [("verdict", f"does not fit: {missing}"), *where]
        spill = f", with {format_size(self.plan.spill_bytes)} on the disk (--spill)" if self.spill else ""
        return [
            ("verdict", f"fits{spill}: about {_lasting(self.plan.step_s)} a step, {self.plan.tokens_per_s:,.0f} tokens/s, "
                        f"{_lasting(self.steps * self.plan.step_s)} for {self.steps:,} steps"),
            *where,
            *(self._faster() if self.searched else []),
            *[(f"{flag(one.name)} {format_size(one.nbytes)}", self._under(one)) for one in self.caps],
        ]

    def _faster(self) -> list[tuple[str, str]]:
        """Return all faster settings together, and then, if they are several, what each of them saves."""
        if self.found is None:
            return [("faster", f"nothing that saves {LEAST_GAIN:.0%} of a step")]
        plan, gains = self.found.plan, self.found.gains
        together = (f"{self.found.words()}: about {_lasting(plan.step_s)} a step, {plan.tokens_per_s:,.0f} tokens/s, "
                    f"{1 - plan.step_s / self.plan.step_s:.0%} less time")
        each = [(f"  {typed(name, self.found.changes[name])}", f"{gain:.0%} less") for name, gain in gains.items()]
        return [("faster", together), *(each if len(each) > 1 else [])]

    def _under(self, cap: UnderCap) -> str:
        if cap.plan is None:
            return "does not fit"
        before = (self.plan if self.found is None else self.found.plan).step_s
        share = cap.plan.step_s / before - 1
        return f"about {_lasting(cap.plan.step_s)} a step, {abs(share):.0%} {'more' if share > 0 else 'less'} time"

    def as_dict(self) -> dict[str, object]:
        """Return the verdict and the plan for other programs; times in seconds, memory in bytes."""
        machine = None if self.hardware is None else self.hardware.title
        found = None if self.found is None else {
            "options": self.found.changes, "step_s": self.found.plan.step_s, "gains": self.found.gains}  # fmt: skip
        caps = [{"option": one.name, "bytes": one.nbytes, "step_s": None if one.plan is None else one.plan.step_s}
                for one in self.caps]
        return {"fits": not self.missing, "faster": found, "under_other_caps": caps,
                "missing": self.missing, "machine": machine, "spill": self.spill, "steps": self.steps,
                "all_steps_s": self.steps * self.plan.step_s, **self.plan.as_dict()}  # fmt: skip


def _lasting(seconds: float) -> str:
    """Return a time in words, with two or three digits."""
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    for most, unit, each in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < most:
            return f"{seconds / each:.3g} {unit}"
    return f"{seconds / 86_400:,.1f} days"
