"""Training steps whose bytes are counted, not moved, for bench_bytes.py and bench_curve.py.

Arithmetic alone, without a device. The schedule of a repeating step is made as in a run (asynctile/measure/simulate.py), and
compared with the least that any schedule could move under the cap (optimum.py). Below a spill folder the least is MIN
(asynctile/schedule/fewest.py) in one memory as large as both caps. Only the inputs of blocks are kept for backward.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpu_rows import config_named
from optimum import Least, least_bytes

from asynctile.layers import GPT2Config
from asynctile.layers.activations import sizes_of
from asynctile.layers.arrangement import Recorded, Surroundings, arrange
from asynctile.layers.machine import Machine
from asynctile.layers.parameters import Parameters
from asynctile.layers.rows import Rows
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.layers.update_placement import NOWHERE, tiles_to_update_on_host
from asynctile.measure.simulate import Traffic, simulate
from asynctile.program.needs import demand_of
from asynctile.schedule.fewest import fewest
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import Demand

#: Where updates run: placed by the plan, or all on the device, so that the program is the same under every cap.
AUTO, ON_DEVICE = "auto", "device"


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The bytes of one step: the least possible, and those of its schedule. made_s: CPU seconds to make the schedule."""

    cap: int
    least: Least
    traffic: Traffic
    made_s: float


@dataclass(frozen=True, kw_only=True)
class Spilled:
    """The bytes that one step reads from and writes to a spill folder.

    least_nbytes: the bytes that MIN reads into one memory as large as both caps.
    """

    read_nbytes: int
    written_nbytes: int
    least_nbytes: int


@dataclass(frozen=True, kw_only=True)
class Model:
    """A training: its shape, batch and tile, and the machine."""

    name: str
    config: GPT2Config
    batch: int
    tile: int
    device: str = "cuda:0"
    precision: str = "bf16"

    def needs(self) -> Demand:
        """Return the demand of its step with every update on the device."""
        parameters, rows = self._cut()
        return demand_of([record("step", parameters, rows)], parameters.states())

    def counted(self, cap: int, update: str) -> Counted:
        """Count one step under a cap in bytes. update: AUTO or ON_DEVICE.

        Raises BudgetError if the cap is below the floor.
        """
        parameters, rows = self._cut()
        standing = list(parameters.states())
        program, machine = record("step", parameters, rows), Machine(device=self.device, precision=self.precision)
        demand, on_host = demand_of([program], standing), NOWHERE
        demand.check(cap)
        if update == AUTO:
            on_host = tiles_to_update_on_host(program, demand, cap, machine.rates)
        program = record("step", parameters, rows, on_host=on_host) if on_host else program
        began = time.process_time()
        traffic = simulate(program, standing, device=self.device, grain=machine.grain, device_memory=cap, rates=machine.rates)
        made_s = time.process_time() - began
        return Counted(cap=cap, least=least_bytes(program, cap), traffic=traffic, made_s=made_s)

    def spilled(self, device_memory: int, host_memory: int) -> Spilled:
        """Count one step under caps in bytes on both memories.

        Every update is on the device, and rows go through a layer in as many passes as in a run. Raises BudgetError if a cap is
        too small.
        """
        parameters, rows = self._cut()
        standing = list(parameters.states())
        machine = Machine(device=self.device, precision=self.precision, device_memory=device_memory, host_memory=host_memory,
                          spill=True)  # fmt: skip
        around = Surroundings(rooms=machine.rooms, standing=sizes_of(standing), spills=True, cores=machine.cores,
                              rates=machine.rates, copies=self.device == "emulated")  # fmt: skip
        recorded = Recorded("step", parameters)
        arranged = arrange(recorded, rows, around, precision=self.precision, recompute=True)
        program = recorded.program(rows.in_passes(arranged.passes), arranged.kept)
        least = fewest(program, device_memory + host_memory, PAGE)
        traffic = simulate(program, standing, device=self.device, grain=machine.grain, device_memory=device_memory,
                           host_memory=host_memory, spill=True)  # fmt: skip
        assert least is not None, "a step that fits into two memories fits into one as large as both"
        return Spilled(read_nbytes=traffic.spill_read_nbytes, written_nbytes=traffic.spill_written_nbytes,
                       least_nbytes=least.loaded_nbytes)  # fmt: skip

    def _cut(self) -> tuple[Parameters, Rows]:
        tiling = Tiling(self.config, self.tile, Machine(device=self.device, precision=self.precision).grain)
        rows = tiling.rows(self.batch, self.config.block_size)
        return Parameters(self.config, tiling, self.precision), rows


def models(length: int = 1024) -> dict[str, Model]:
    """Return models on a GPU by name, with tiles narrower than the default ones, so that each fits under caps of 10%."""
    wide = GPT2Config(n_layer=4, n_head=32, n_embd=4096, block_size=length, vocab_size=50257)
    found = [
        Model(name="gpt2", config=config_named("gpt2", length), batch=16, tile=768),
        Model(name="gpt2-medium", config=config_named("gpt2-medium", length), batch=16, tile=1024),
        Model(name="gpt2-xl", config=config_named("gpt2-xl", length), batch=12, tile=3072),
        Model(name="4 layers of 4096", config=wide, batch=16, tile=2048),
    ]
    return {model.name: model for model in found}
