"""Lockstep, for prefetch 0: loads and work alternate without overlap, which shows what overlap is worth. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from asynctile.schedule.schedule import DISK, Kind, Scheduled


def in_lockstep(entries: Sequence[Scheduled]) -> tuple[Scheduled, ...]:
    """Return the same entries, where each load waits for all work before it, and each piece of work for all loads before it.

    Write-backs and copies within a tier overlap as usual.
    """
    found, was_load = [], False
    before: list[int] = []
    now: list[int] = []
    for number, entry in enumerate(entries):
        is_load = _is_load(entry)
        if is_load or entry.kind in (Kind.OPERATION, Kind.FETCH):
            if is_load is not was_load:  # entries before `before` are over as well, because those waited for them
                before, now, was_load = now, [], is_load
            now.append(number)
            entry = replace(entry, after=tuple(sorted({*entry.after, *before}.difference(entry.waits))))
        found.append(entry)
    return tuple(found)


def _is_load(entry: Scheduled) -> bool:
    return entry.kind in (Kind.UPLOAD, Kind.PASS) or (entry.kind is Kind.TRANSFER and entry.places[0].tier != DISK)
