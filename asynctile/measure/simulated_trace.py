"""The trace of a step that only a virtual clock has run, in the form of a real trace (trace_events.py).

Nothing has run: the step's span says so, and its times begin at zero.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator

from asynctile.device.names import stream_name
from asynctile.hub import ENGINE
from asynctile.measure.trace_events import TraceEvents
from asynctile.measure.trace_file import TraceFile
from asynctile.measure.virtual import Resource, Timeline, Unit
from asynctile.schedule.schedule import DISK, Schedule, Scheduled
from asynctile.streams.recorder import Begun, Message, Ran, Stepped

#: The name of the step's span.
STEP = "step, simulated: nothing ran"
#: Most messages that are written at once.
_AT_ONCE = 2048
#: The streams of a real trace, by resource; those of several devices have a number.
_STREAMS = {Resource.COMPUTE: "compute", Resource.UP: "upload", Resource.DOWN: "download", Resource.PASSED: "pass",
            Resource.UPDATES: "host", Resource.DISK: "spill"}  # fmt: skip
_OF_THE_HOST = (Resource.UPDATES, Resource.DISK)


def write_simulated(path: str, schedule: Schedule, clock: Timeline) -> int:
    """Write the trace of a schedule that a clock ran; return the number of its events. OSError if that fails."""
    events, file = TraceEvents(0.0), TraceFile(path)
    try:
        lines: list[str] = []
        count = 0
        for message in _messages(schedule, clock):
            events.add(message, lines)
            if len(lines) >= _AT_ONCE:
                file.append(lines)
                count, lines = count + len(lines), []
        lines += events.end()
        file.append(lines)
        return count + len(lines)
    finally:
        file.close()


def _messages(schedule: Schedule, clock: Timeline) -> Iterator[Message]:
    """Yield the messages of a step in the order in which streams would report them."""
    yield Begun(ENGINE, schedule.program)
    yield Stepped(ENGINE, STEP, 0.0, clock.seconds, {"simulated": True, "entries": len(schedule)})
    lanes = _lanes(clock)
    for number in sorted(range(len(schedule)), key=lambda number: clock.ends[number]):
        entry, unit = schedule.entries[number], clock.units[number]
        stream = _stream(unit, schedule.program.devices)
        yield Ran(stream, f"{stream}-{lanes[number]}", _verb(entry, stream), entry.what, 0.0, clock.begins[number],
                  clock.ends[number], None)  # fmt: skip


def _stream(unit: Unit, devices: int) -> str:
    name = _STREAMS[unit.resource]
    return name if unit.resource in _OF_THE_HOST else stream_name(name, unit.device, devices)


def _verb(entry: Scheduled, stream: str) -> str:
    """Return the name of what an entry does, as the functions of real streams are called."""
    if stream == "spill":
        return "write" if entry.places[0].tier == DISK else "read"
    return "copy" if stream.partition(":")[0] == "compute" else stream.partition(":")[0]


def _lanes(clock: Timeline) -> list[int]:
    """Return, for each entry, a lane of its unit in which nothing else runs meanwhile: the first that is free."""
    lanes = [0] * len(clock.begins)
    busy: dict[Unit, list[tuple[float, int]]] = defaultdict(list)
    free: dict[Unit, list[int]] = defaultdict(list)
    for number in sorted(range(len(lanes)), key=lambda number: (clock.begins[number], clock.ends[number])):
        unit = clock.units[number]
        while busy[unit] and busy[unit][0][0] <= clock.begins[number]:
            heapq.heappush(free[unit], heapq.heappop(busy[unit])[1])
        lanes[number] = heapq.heappop(free[unit]) if free[unit] else len(busy[unit])
        heapq.heappush(busy[unit], (clock.ends[number], lanes[number]))
    return lanes
