"""`asynctile plan`: shows what a training step needs and what limits it, without its model and without its device.

Covers choosing the shape from the options of `train`, measuring the rates of this machine, and printing.
asynctile/layers/plan.py does the planning.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Timer
from typing import Any, Self

from asynctile import Engine
from asynctile.cli.corpus import expected_vocab_size
from asynctile.cli.excess import warn_of_excess
from asynctile.cli.fitting import check_devices
from asynctile.cli.model import choose_shape
from asynctile.cli.options import Options
from asynctile.cli.placement import machine_of, work_of
from asynctile.cli.precedence import new_options, resumed_options
from asynctile.cli.rows import print_rows
from asynctile.cli.run_folder import existing_run, recorded_rates
from asynctile.cli.terminal import complain
from asynctile.errors import AsynctileError
from asynctile.layers.machine import Machine
from asynctile.layers.plan import plan_step
from asynctile.measure.known import known
from asynctile.schedule.rates import Rates
from asynctile.storage.counts import counted

__all__ = ["run"]

#: Seconds before stderr shows what is being worked out.
SILENT_S = 1.0


def run(given: dict[str, Any]) -> int:
    """Print the plan and return the exit status."""
    typed = {name: value for name, value in given.items() if name not in ("resume", "gflops")}
    if given.get("resume"):
        folder = existing_run(typed)
        record = folder.read_record()
        options = resumed_options(typed, record["options"], folder.path)
        rates = recorded_rates(record, options.device, options.precision, folder.path)
    else:
        options, rates = new_options(typed), None
    check_devices(options)
    warn_of_excess(options)
    shape = choose_shape(options, expected_vocab_size(options))
    seq_len = options.seq_len or shape.block_size
    machine = machine_of(options)
    with _Stages() as stages, _without_collections():
        gemm_rate = float(given["gflops"]) * 1e9 if "gflops" in given else None
        rates = _rates(machine, stages) if rates is None else rates
        machine = replace(machine, measured=rates, gemm_rate=gemm_rate)
        plan = plan_step(shape, work_of(options, seq_len), machine, stages.begin)
    print_rows([
        ("model", shape.summary),
        ("batch", _batch(options, seq_len)),
        *plan.lines(),
    ])  # fmt: skip
    return 0


def _batch(options: Options, seq_len: int) -> str:
    replicas = "" if options.replicas == 1 else f"in replicas: {options.replicas}, each "
    batch = f"{counted(options.sequences, 'sequence')} of {counted(seq_len, 'token')}"
    return f"{batch}, {replicas}in micro-batches: {options.parts}"


def _rates(machine: Machine, stages: _Stages) -> Rates | None:
    """Return the rates by which an engine plans here, measuring the cores if necessary; None: assume them."""
    found = known(machine.device, machine.precision)
    if found is not None or machine.is_gpu:
        return found
    stages.begin("measuring the speed of this machine")
    try:
        return asyncio.run(_measured())
    except AsynctileError:  # too little memory to measure, or kernels that cannot be compiled
        return None


async def _measured() -> Rates:
    async with Engine("cpu") as engine:
        return engine.rates


class _Stages:
    """Shows on stderr what is being worked out, starting SILENT_S after the beginning."""

    def __init__(self) -> None:
        self._text = ""
        self._timer = Timer(SILENT_S, self._tell)
        self._timer.daemon = True
        self._silent = True

    def __enter__(self) -> Self:
        with suppress(RuntimeError):  # the system refuses a thread: stay silent
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def begin(self, text: str) -> None:
        """Note that the next stage has begun."""
        self._text = text
        if not self._silent:
            self._tell()

    def _tell(self) -> None:
        self._silent = False
        complain(f"asynctile plan: {self._text} ...")


@contextmanager
def _without_collections() -> Iterator[None]:
    """Turn garbage collection off while planning.

    Planning makes millions of small objects without cycles, and looking for cycles took a fifth of its time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
