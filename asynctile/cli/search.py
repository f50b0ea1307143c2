"""Faster settings of a run, found by planning: `asynctile plan --search` names them, `asynctile train --auto` takes them.

They are tried one by one, until a time is over. Only settings that keep the training the same are tried: they change at most
the last bits of its results. Each try is a whole plan, whose seconds the virtual clock estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
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

__all__ = ["MORE_RAM", "Found", "faster", "faster_than_defaults"]

#: The settings that a search changes.
SETTINGS = ("tile", "update", "recompute", "micro_batches")

#: A setting must make the step shorter by this share, or it is not worth typing. Estimates are no better than that.
LEAST_GAIN = 0.02
#: The most parts of a batch that are tried.
MOST_PARTS = 16
#: So many times the RAM of a plan may other settings take on this machine: other tiles are padded differently.
MORE_RAM = 1.1


@dataclass(frozen=True)
class Found:
    """Settings that beat those of the run. plan: with all of them together. changes: by option, the value to type."""

    plan: Plan
    changes: dict[str, Any]

    def words(self) -> str:
        """Return the settings as they are typed."""
        return " ".join(typed(name, value) for name, value in self.changes.items())


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
            changes = best.changes | {name: value}
            other = replace(options, **changes)
            if _key(other) in tried:
                continue
            tried.add(_key(other))
            try:
                found = plan(other)
            except (BudgetError, ValueError):  # it does not fit, or a batch cannot be cut like that
                continue
            if found.step_s < (1 - LEAST_GAIN) * best.plan.step_s and found.host_bytes <= most_ram:
                best = Found(found, changes)
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


def _key(options: Options) -> tuple[Any, ...]:
    return options.tile, options.update, options.recompute, options.micro_batches
