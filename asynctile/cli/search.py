"""Faster settings of a run, found by planning: `asynctile plan --search` names them, `asynctile train --auto` takes them.

They are tried one by one, until a time is over. Only settings that keep the training the same are tried: they change at most
the last bits of its results. Each try is a whole plan, whose seconds the virtual clock estimates. A typed cap is a limit, so a
search keeps it; `under_other_caps` says what more or less memory would change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from asynctile.cli.option import typed
from asynctile.cli.options import Options
from asynctile.cli.planning import plan_of
from asynctile.collector import without_collections
from asynctile.errors import BudgetError
from asynctile.layers.config import Config
from asynctile.layers.plan import Plan
from asynctile.layers.update_placement import UPDATES
from asynctile.schedule.rates import Rates

__all__ = ["CAPS", "MORE_RAM", "SETTINGS", "Found", "UnderCap", "faster", "faster_than_defaults", "under_other_caps"]

#: The settings that a search changes. On a machine with several GPUs it also changes "replicas".
SETTINGS = ("tile", "update", "recompute", "micro_batches")
#: The options that are caps on memory.
CAPS = ("device_memory", "host_memory")

#: A setting must make the step shorter by this share, or it is not worth typing. Estimates are no better than that.
LEAST_GAIN = 0.02
#: The most parts of a batch that are tried.
MOST_PARTS = 16
#: So many times the RAM of a plan may other settings take on this machine: other tiles are padded differently.
MORE_RAM = 1.1


@dataclass(frozen=True)
class Found:
    """Settings that beat those of the run.

    plan: with all of them together. changes: by option, the value to type. gains: by option, the share of a step that the
    change saved when the search made it.
    """

    plan: Plan
    changes: dict[str, Any]
    gains: dict[str, float] = field(default_factory=dict)

    def words(self) -> str:
        """Return the settings as they are typed."""
        return " ".join(typed(name, value) for name, value in self.changes.items())

    def with_(self, name: str, value: Any, plan: Plan) -> Found:
        """Return these settings with one more change, which leads to `plan`."""
        left = (1 - self.gains.get(name, 0.0)) * plan.step_s / self.plan.step_s
        return Found(plan, self.changes | {name: value}, self.gains | {name: 1 - left})


@dataclass(frozen=True)
class UnderCap:
    """A step under another cap. name, nbytes: of the cap. plan: of the step, None if it does not fit."""

    name: str
    nbytes: int
    plan: Plan | None


def faster(
    options: Options, first: Plan, plan: Callable[[Options], Plan], is_over: Callable[[], bool], most_ram: int,
    settings: Collection[str] = SETTINGS,
) -> Found | None:  # fmt: skip
    """Return the fastest settings found, or None if nothing is faster than `first`, the plan of the options.

    plan: plans other options. is_over: whether to stop. most_ram: bytes of RAM that tiles may take. settings: those that may
    change. Changes one setting of the best ones so far at a time, until no change helps.
    """
    best = Found(first, {})
    tried = {_key(options)}
    while True:
        before = best
        for name, value in _changes(replace(options, **best.changes), best.plan):
            if name not in settings:
                continue
            if is_over():
                return best if best.changes else None
            other = replace(options, **best.changes | {name: value})
            if _key(other) in tried:
                continue
            tried.add(_key(other))
            try:
                found = plan(other)
            except (BudgetError, ValueError):  # it does not fit, or a batch cannot be cut like that
                continue
            if found.step_s < (1 - LEAST_GAIN) * best.plan.step_s and found.host_bytes <= most_ram:
                best = best.with_(name, value, found)
        if best is before:
            return best if best.changes else None


def faster_than_defaults(
    options: Options, shape: Config, rates: Rates | None, is_over: Callable[[], bool]
) -> Found | None:
    """Return faster settings than the defaults for a new run on this machine, or None. Settings that were chosen stay.

    rates: by which the run plans. is_over: whether to stop.
    """
    plan = partial(plan_of, shape, there=None, rates=rates, gemm_rate=None, stage=lambda text: None)
    default = Options()
    unset = [name for name in SETTINGS if getattr(options, name) == getattr(default, name)]
    with without_collections():
        try:
            first = plan(options)
        except BudgetError:
            return None  # the run itself says what is missing
        return faster(options, first, plan, is_over, round(MORE_RAM * first.host_bytes), unset)


def under_other_caps(
    options: Options, plan: Callable[[Options], Plan], is_over: Callable[[], bool], most: Mapping[str, int | None]
) -> Iterator[UnderCap]:
    """Yield each cap of `most` that the options have, once doubled and once halved, with the plan under it.

    plan: plans other options. is_over: whether to stop. most: by cap, the bytes that the machine has, None
    if nobody knows.
    """
    for name, there_is in most.items():
        cap = getattr(options, name)
        for nbytes in (2 * cap, cap // 2) if cap else ():
            if is_over():
                return
            if there_is is None or nbytes <= there_is:
                try:
                    yield UnderCap(name, nbytes, plan(replace(options, **{name: nbytes})))
                except BudgetError:
                    yield UnderCap(name, nbytes, None)


def _changes(options: Options, plan: Plan) -> Iterator[tuple[str, Any]]:
    """Yield single changes of the settings, the most promising first.

    Tiles only grow. Kernels are slower on small tiles, and the rates of a machine do not say by how much: to the clock, halved
    tiles were up to 8% faster; on two cores they were up to 1.5 times slower (bench/bench_proposals.py).
    """
    yield "tile", plan.tile * 2
    for update in UPDATES:
        yield "update", update
    for recompute in (True, False):
        yield "recompute", recompute
    for parts in (options.micro_batches * 2, options.micro_batches // 2):
        if 1 <= parts <= MOST_PARTS and options.batch_size % (parts * options.replicas) == 0:
            yield "micro_batches", parts
    if options.batch_size % (2 * options.replicas * options.micro_batches) == 0:
        yield "replicas", 2 * options.replicas


def _key(options: Options) -> tuple[Any, ...]:
    return options.tile, options.update, options.recompute, options.micro_batches, options.replicas
