"""Training steps on machines that are not here, under several policies, by the virtual clock. For bench_policies.py.

Nothing runs. The plan is the real one, with its addresses; the rivals are in policies/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from common import step_flops
from policies.dmdasd import dmdasd
from policies.layer_by_layer import layer_by_layer
from policies.least_recent import least_recent

from asynctile.errors import BudgetError
from asynctile.layers import GPT2Config
from asynctile.layers.machine import Machine, Work
from asynctile.layers.planned_step import PlannedStep, planned_step
from asynctile.measure.costs import EntryCosts
from asynctile.measure.hardware import Hardware
from asynctile.measure.simulate import simulate
from asynctile.measure.virtual import Timeline
from asynctile.schedule.schedule import Kind, Schedule

PLANNED, LRU, GREEDY, LAYERS = "planned", "LRU", "dmdasd", "layer by layer"
POLICIES = (PLANNED, LRU, GREEDY, LAYERS)


@dataclass(frozen=True, slots=True)
class Simulated:
    """A step by the clock. tflops: TFLOP/s of all devices, three times the products of forward, whatever is recomputed."""

    schedule: Schedule
    clock: Timeline
    tflops: float

    def moved(self, *kinds: Kind) -> float:
        """Return the GB that moves of these kinds carry."""
        return sum(entry.nbytes for entry in self.schedule.entries if entry.kind in kinds) / 1e9


class Setting(NamedTuple):
    """A step to simulate, with one replica for each GPU. cap: of each GPU in bytes; None: all that it has."""

    config: GPT2Config
    hardware: Hardware
    batch: int
    precision: str = "tf32"
    tile: int | None = None
    cap: int | None = None

    @property
    def machine(self) -> Machine:
        there = self.hardware
        return Machine(device=there.device, precision=self.precision, device_memory=self.cap or there.memory,
                       measured=there.rates(self.precision), passed_per_s=there.passed_per_s, verbs=there.verbs)  # fmt: skip

    def step(self, update: str = "auto") -> PlannedStep:
        work = Work(batch_size=self.batch, seq_len=self.config.block_size, replicas=self.hardware.count, tile=self.tile,
                    update=update)  # fmt: skip
        return planned_step(self.config, work, self.machine)


@dataclass(slots=True)
class Step:
    """A setting with its program. `under` simulates it under one policy."""

    setting: Setting
    made: PlannedStep = field(init=False)

    def __post_init__(self) -> None:
        self.made = self.setting.step()

    @property
    def ram_gb(self) -> float:
        """The GB of RAM that the tiles of a planned step take: there is a place for each of them."""
        return self.made.demand.resident_nbytes / 1e9

    @property
    def operations(self) -> int:
        return sum(1 for _ in self.made.program.operations())

    def under(self, policy: str) -> Simulated | None:
        """Return the step under a policy, or None if the policy cannot run it under this cap."""
        setting, machine = self.setting, self.setting.machine
        costs, cap = machine.costs(self.made.parameters.tiling.tile), setting.cap or setting.hardware.memory or 0
        ways: Mapping[str, Callable[[], Schedule]] = {
            PLANNED: partial(self._planned, machine, cap),
            LRU: lambda: least_recent(self.made.program, cap),
            GREEDY: lambda: dmdasd(self.made.program, cap, costs),
            LAYERS: lambda: layer_by_layer(setting.step("host").program, cap),
        }
        try:
            schedule = ways[policy]()
        except (ValueError, BudgetError):
            return None
        return self._timed(schedule, costs)

    def _planned(self, machine: Machine, cap: int) -> Schedule:
        return simulate(self.made.program, self.made.standing, demand=self.made.demand, device=machine.device,
                        grain=machine.grain, device_memory=cap, rates=machine.rates).schedule  # fmt: skip

    def _timed(self, schedule: Schedule, costs: EntryCosts) -> Simulated:
        clock, config = costs.timeline(schedule), self.setting.config
        flops = step_flops(config, self.setting.batch * config.block_size, config.block_size)
        return Simulated(schedule, clock, flops / clock.seconds / 1e12)


def with_memory(setting: Setting, cap: int) -> Setting:
    """Return the same setting under another cap of each GPU."""
    return setting._replace(cap=cap)
