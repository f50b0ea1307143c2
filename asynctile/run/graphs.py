"""Replays: a program's operations, written down once as graphs of the device and run again without Python.

Where every tile of a program stays on the device, each run enqueues the same kernels on the same addresses. The first run
brings everything there. The second walks the program once more, and the device writes down what it is asked for instead of
running it: a graph for each stretch between two marks. From then on a run is a few launches, as long as every tile stands
where it stood; else the next run writes it down anew.

Where tiles come and go this does not apply: their addresses change from run to run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asynctile.device.base import Device, Recorder
from asynctile.memory.host_link import HostLink
from asynctile.memory.tier import Tier, unfinished
from asynctile.program.handle import Handle
from asynctile.program.operation import HOST, READ, Operation
from asynctile.program.program import Fetch, Program
from asynctile.run.lane import Lane
from asynctile.streams.stream import StreamEvent

#: A program that must be written down more often than this is better issued as it is.
ATTEMPTS = 8


@dataclass(slots=True)
class Segment:
    """Entries up to `stop`, as a graph. inputs: with the arrays that the graph reads. writes: tiles that stay."""

    stop: int
    graph: Any
    inputs: list[tuple[Handle, Any]]
    writes: list[Handle]
    operations: int


class Replay:
    """One program on one device.

    It does not hold the program, which would never end then (Replays). numbers: what its kernels report, float64 by the
    program's indices. complete: every segment has been written down.
    """

    def __init__(self, program: Program, recorder: Recorder, tier: Tier, link: HostLink, lane: Lane) -> None:
        self.numbers = lane.device.numbers(len(program.numbers) + 1)
        self.complete = False
        self._recorder = recorder
        self._tier = tier
        self._link = link
        self._lane = lane
        self._segments: dict[int, Segment] = {}
        self._stops = sorted({*program.marks.values(), len(program)})
        self._last: StreamEvent | None = None
        #: where every tile stood when it began; all other slots were free
        self._places = {tile: tile.slot for tile in tier.ledger.resident}
        self._graphs: list[Any] = []
        weakref.finalize(self, _forget, recorder, self._graphs).atexit = False

    def stands(self) -> bool:
        """Whether it is complete and the device is as it was when the program was written down."""
        places, resident = self._places, self._tier.ledger.resident
        return self.complete and len(resident) == len(places) and all(places.get(tile) is tile.slot for tile in resident)

    def has(self, start: int) -> bool:
        """Whether the segment that begins at entry `start` was written down."""
        return start in self._segments

    def capture(self, program: Program, start: int, issue: Callable[[int], Any]) -> tuple[int, StreamEvent]:
        """Write down and run the segment that begins at `start`: where it stops, and its event. Nothing may be in flight.

        issue: issues one entry. Raises what it raises; the replay is no good then.
        """
        stop = next(stop for stop in self._stops if stop > start)
        entries = program.entries[start:stop]
        wrote: dict[Handle, bool] = {}
        for entry in entries:
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                if tile.persistent:
                    wrote[tile] = how != READ or wrote.get(tile, False)
        inputs = [tile for tile in program.inputs.values() if wrote.pop(tile, None) is not None]
        for tile in inputs:
            self._tier.admit((tile,), READ)
        held = [(tile, tile.array) for tile in inputs]
        event = self._recorder.begin_capture()
        try:
            for index in range(start, stop):
                issue(index)
        finally:
            graph = self._recorder.end_capture()
            self._graphs.append(graph)
        operations = sum(isinstance(entry, Operation) for entry in entries)
        writes = [tile for tile, changed in wrote.items() if changed]
        self._segments[start] = Segment(stop, graph, held, writes, operations)
        self.complete = stop == len(program)
        return stop, event

    def play(self, start: int) -> tuple[int, StreamEvent]:
        """Run the segment that begins at `start` once more: where it stops, and its event."""
        segment = self._segments[start]
        # Every run ends with nothing in flight: only this run's own loads are to be waited for.
        event = self._last = self._recorder.replay(segment.graph, [self._load(*held) for held in segment.inputs])
        for tile in segment.writes:
            tile.written, tile.reads = event, []
            self._tier.ledger.used(tile, tile.next_use, True)
            if self._lane.on_use is not None:
                self._lane.on_use(tile, tile.next_use, True)
        self._lane.operations += segment.operations
        self._lane.window.add(event)
        return segment.stop, event

    def _load(self, tile: Handle, array: Any) -> StreamEvent:
        """Bring an input to where the graph reads it, in a slot that is nobody's, once the segment before has no use for it."""
        tile.array = array
        event = self._link.read(tile, None, unfinished(self._last))
        tile.array = None
        self._tier.loaded_nbytes += tile.nbytes
        return event


class Replays:
    """The replays of an engine's programs."""

    def __init__(self, device: Device, tier: Tier, link: HostLink, lane: Lane) -> None:
        self._device = device
        self._tier = tier
        self._parts = tier, link, lane
        self._seen: weakref.WeakKeyDictionary[Program, int] = weakref.WeakKeyDictionary()
        self._kept: weakref.WeakKeyDictionary[Program, Replay] = weakref.WeakKeyDictionary()

    def begin(self, program: Program) -> Replay | None:
        """A run begins: the replay to play or to write down, None for a run that issues its entries."""
        recorder, tier = self._device.recorder(), self._tier
        if recorder is None or tier.turns is not None or tier.arena.divided:
            return None
        replay = self._kept.get(program)
        if replay is not None and replay.stands():
            return replay
        self._kept.pop(program, None)
        seen = self._seen[program] = self._seen.get(program, 0) + 1
        if not 1 < seen <= 1 + ATTEMPTS or not self._stays(program):
            return None
        replay = self._kept[program] = Replay(program, recorder, *self._parts)
        return replay

    def _stays(self, program: Program) -> bool:
        """Whether its tiles are all there, and nothing of it is done by the host."""
        inputs = set(program.inputs.values())
        if any(tile.slot is None for tile in program.standing if tile not in inputs):
            return False
        return not any(
            isinstance(entry, Fetch) or (isinstance(entry, Operation) and entry.place == HOST) for entry in program.entries
        )


def _forget(recorder: Recorder, graphs: list[Any]) -> None:
    for graph in graphs:
        recorder.forget(graph)
