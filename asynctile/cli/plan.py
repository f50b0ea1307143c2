"""`asynctile plan`: says whether a training step fits, how long it takes and what limits it, without its model and device.

Covers choosing the shape from the options of `train`, searching for faster settings, and printing. planning.py plans.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Timer
from typing import Any, Self

from asynctile.cli.corpus import expected_vocab_size
from asynctile.cli.fitting import check_devices
from asynctile.cli.model import choose_shape, length_of, model_folder, tuning_of
from asynctile.cli.options import Options
from asynctile.cli.placement import warn_of_excess
from asynctile.cli.planning import plan_of
from asynctile.cli.precedence import new_options, resumed_options
from asynctile.cli.run_folder import existing_run, recorded_rates
from asynctile.cli.search import CAPS, MORE_RAM, SETTINGS, faster, under_other_caps
from asynctile.cli.terminal import complain, print_rows, say
from asynctile.cli.tracing import check_path
from asynctile.cli.verdict import Verdict, placed_on
from asynctile.collector import without_collections
from asynctile.errors import BudgetError
from asynctile.layers.plan import Plan
from asynctile.layers.tokenizer import has_tokenizer
from asynctile.measure.hardware import GPU, Hardware, hardware
from asynctile.measure.simulated_trace import write_simulated
from asynctile.measure.virtual import Timeline
from asynctile.schedule.schedule import Schedule
from asynctile.storage.counts import counted

__all__ = ["run"]

#: Options of `plan` alone.
_OWN = ("resume", "gflops", "gbits", "machine", "json", "search")
#: Seconds before stderr shows what is being worked out.
SILENT_S = 1.0


def run(given: dict[str, Any]) -> int:
    """Print the plan and return the exit status: 1 for a step that does not fit on the machine."""
    typed = {name: value for name, value in given.items() if name not in _OWN}
    there = hardware(given["machine"]) if "machine" in given else None
    if given.get("resume"):
        folder = existing_run(typed)
        record = folder.read_record()
        options = resumed_options(typed, record["options"], folder.path)
        rates = recorded_rates(record, options.device, options.precision, folder.path)
    else:
        options, rates = new_options(typed), None
    check_devices(options)
    if there is None:
        warn_of_excess(options)
    check_path(options.trace)
    shape = choose_shape(options, _vocab_size(options))
    lora = tuning_of(options, shape).lora  # refuses settings that do not fit the model
    if lora is not None and (excess := lora.excess(shape)) is not None:
        warnings.warn(f"--lora {options.lora}: {excess}", stacklevel=2)
    shown = _Shown()
    with _Stages() as stages, without_collections():
        gemm_rate = float(given["gflops"]) * 1e9 if "gflops" in given else None
        sent_per_s = float(given["gbits"]) * 1e9 / 8 if "gbits" in given else None
        of_shape = partial(plan_of, shape, rates=rates, gemm_rate=gemm_rate, sent_per_s=sent_per_s)
        plan = partial(of_shape, stage=stages.begin, keep=shown.keep)
        verdict = _verdict(options, there, plan)
        if "search" in given and not verdict.missing:
            until = time.monotonic() + given["search"]
            stages.begin("searching for faster settings")
            quietly = partial(of_shape, there=there, stage=lambda text: None)
            verdict = _searched(verdict, options, quietly, lambda: time.monotonic() > until)
        if options.trace is not None:
            stages.begin("writing the trace")
            shown.write(options.trace)
    if given.get("json"):
        say(json.dumps(verdict.as_dict(), indent=2) + "\n")
    else:
        batch = _batch(options, length_of(options.seq_len, shape))
        print_rows([*verdict.lines(), ("model", shape.summary), ("batch", batch), *verdict.plan.lines()])
    return 1 if verdict.missing else 0


def _vocab_size(options: Options) -> int:
    """Return how many tokens the run's tokenizer has: 0 for a model's folder without one, since a plan reads no text."""
    folder = model_folder(options)
    if options.tokenizer is None and folder is not None and not has_tokenizer(folder):
        return 0
    return expected_vocab_size(options)


def _verdict(options: Options, there: Hardware | None, plan: Callable[[Options, Hardware | None], Plan]) -> Verdict:
    """Return the verdict of the first way that fits, or of the last one. BudgetError if no way has room for one operation."""
    ways = [options] if there is None else list(placed_on(options, there))
    for way in ways:
        try:
            verdict = Verdict(plan(way, there), way, there)
        except BudgetError:
            if way is ways[-1]:
                raise
            continue
        if not verdict.missing:
            break
    return verdict


def _searched(
    verdict: Verdict, options: Options, plan: Callable[[Options], Plan], is_over: Callable[[], bool]
) -> Verdict:
    """Return the verdict with faster settings, and with what other caps than the typed ones would change.

    options: as they were typed. plan: plans other options on the same machine. is_over: whether to stop.
    """
    there = verdict.hardware
    most_ram = round(MORE_RAM * verdict.plan.host_bytes) if there is None else there.ram
    may_replicate = there is not None and there.kind == GPU and options.device == "auto" and options.nodes == 1
    settings = (*SETTINGS, "replicas") if may_replicate else SETTINGS

    def placed(other: Options) -> Plan:
        """Plan options on as many GPUs as they have replicas."""
        if there is None or not may_replicate:
            return plan(other)
        if other.replicas > there.count:
            raise ValueError(f"{there.title} has no GPU for each of {other.replicas} replicas")
        return plan(replace(other, device=there.first(other.replicas)))

    found = faster(verdict.options, verdict.plan, placed, is_over, most_ram, settings)
    best = replace(verdict.options, **found.changes if found else {})
    most = (None, None) if there is None else (there.memory, there.ram)
    typed = {name: nbytes for name, nbytes in zip(CAPS, most, strict=True) if getattr(options, name) is not None}
    return replace(verdict, searched=True, found=found, caps=tuple(under_other_caps(best, placed, is_over, typed)))


class _Shown:
    """The step of the last plan, for a trace."""

    def __init__(self) -> None:
        self._step: tuple[Schedule, Timeline] | None = None

    def keep(self, schedule: Schedule, clock: Timeline) -> None:
        self._step = schedule, clock

    def write(self, path: str) -> None:
        """Write the trace of the step. OSError names the option."""
        assert self._step is not None
        try:
            events = write_simulated(path, *self._step)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"--trace {path}") from error
        complain(f"wrote {events:,} events of a simulated step to {path}: open it in ui.perfetto.dev or chrome://tracing")


def _batch(options: Options, seq_len: int) -> str:
    replicas = "" if options.replicas == 1 else f"in replicas: {options.replicas}, each "
    batch = f"{counted(options.sequences, 'sequence')} of {counted(seq_len, 'token')}"
    return f"{batch}, {replicas}in micro-batches: {options.parts}"


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
