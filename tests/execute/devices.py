"""Schedules over several devices, made from schedules of one. Their edges still hold; their places do not matter."""

from __future__ import annotations

import random
from dataclasses import replace

from asynctile.schedule.schedule import TOP, Kind, Schedule, Scheduled, tier_of


def spread(schedule: Schedule, devices: int, seed: int) -> Schedule:
    """Return the schedule with every entry of the device on one of several devices, by chance."""
    chance = random.Random(seed)

    def moved(entry: Scheduled) -> Scheduled:
        tier = TOP if entry.kind is Kind.TRANSFER else tier_of(chance.randrange(devices))
        return replace(entry, places=tuple([replace(one, tier=tier) if one.tier == TOP else one for one in entry.places]))

    return replace(schedule, entries=tuple(map(moved, schedule.entries)))
