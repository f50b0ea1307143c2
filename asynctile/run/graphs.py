"""Graphs: a program's operations, written down once by the device and run again without Python.

Where every tile of a program stays on the device, each run enqueues the same kernels on the same addresses. The first run
brings everything there. The second walks the program once more, and the device writes down what it is asked for instead of
running it: a graph for each stretch between two marks. From then on a run is a few operations, each a graph whose operands are
the tiles of its stretch that stay; they come through the tile coroutine like any other (lane.py). That holds as long as every
tile stands where it stood; else the next run writes it down anew.

Where tiles come and go this does not apply: their addresses change from run to run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from asynctile.device.base import Device, Recorder
from asynctile.memory.tier import Tier
from asynctile.program.operation import HOST, READ, UPDATE, GraphOperation, Operation
from asynctile.program.program import Fetch, Program
from asynctile.run.lane import Lane
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent

T = TypeVar("T")
#: A program that is written down this often in a row without being run from that once is better issued as it is.
ATTEMPTS = 8


@dataclass(slots=True)
class Stretch:
    """Entries up to `stop`, as one operation, whose operands are the tiles of theirs that stay."""

    stop: int
    operation: GraphOperation


class Capture:
    """One program on one device, written down: the graphs of its stretches.

    It does not hold the program, which would never end then (Graphs). numbers: what its kernels report, float64 by the
    program's indices. complete: every stretch has been written down. served: one of them has run once more.
    """

    def __init__(self, program: Program, recorder: Recorder, tier: Tier, lane: Lane) -> None:
        self.numbers: np.ndarray = lane.device.numbers(len(program.numbers) + 1)
        self.complete = self.served = False
        self._recorder = recorder
        self._tier = tier
        self._lane = lane
        self._stretches: dict[int, Stretch] = {}
        self._stops = sorted({*program.marks.values(), len(program)})
        #: where every tile stood when it began; all other slots were free
        self._places = {residency: residency.slot for residency in tier.ledger.resident}
        self._graphs: list[Any] = []
        weakref.finalize(self, _forget, recorder, self._graphs).atexit = False

    def stands(self) -> bool:
        """Whether it is complete and the device is as it was when the program was written down."""
        places, resident = self._places, self._tier.ledger.resident
        return self.complete and len(resident) == len(places) and all(places.get(one) is one.slot for one in resident)

    def has(self, start: int) -> bool:
        """Whether the stretch that begins at entry `start` was written down."""
        return start in self._stretches

    def write_down(
        self, program: Program, start: int, coroutine: Callable[[int], Coroutine[Any, Any, StreamEvent]]
    ) -> tuple[int, StreamEvent]:
        """Write down and run the stretch that begins at `start`: where it stops, and its event. Nothing may be in flight.

        coroutine: the tile coroutine of an entry that is no mark. Raises what it raises; what was written is no good then.
        Without an await: whatever another job enqueued meanwhile would be written down as well.
        """
        stop = next(stop for stop in self._stops if stop > start)
        access = _access(program, start, stop)
        inputs = [tile for tile in program.inputs.values() if access.pop(tile, None) is not None]
        residencies = [self._tier.of(tile) for tile in inputs]
        self._tier.admit(residencies, READ * len(inputs))
        slots = {residency.tile: residency.slot for residency in residencies}
        event = self._recorder.begin_capture()
        try:
            for index in range(start, stop):
                if program.entries[index].tiles:
                    at_once(coroutine(index))
        finally:
            graph = self._recorder.end_capture()
            self._graphs.append(graph)
        count = sum(isinstance(entry, Operation) for entry in program.entries[start:stop])
        operation = GraphOperation(
            f"graph of {program.name}", (*access, *inputs), "".join(access.values()) + READ * len(inputs),
            graph=graph, recorder=self._recorder, count=count, slots=slots,
        )  # fmt: skip
        self._stretches[start] = Stretch(stop, operation)
        self.complete = stop == len(program)
        return stop, event

    async def play(self, start: int) -> tuple[int, StreamEvent]:
        """Run the stretch that begins at `start` once more: where it stops, and its event."""
        stretch = self._stretches[start]
        operation = stretch.operation
        next_uses = [self._tier.of(tile).next_use for tile in operation.operands]
        event = await self._lane.perform(operation, next_uses)
        self.served = True
        for slot in self._tier.arena.free_slots():  # those of its temporaries are among them
            slot.guard = (event,)
        return stretch.stop, event


class Graphs:
    """The graphs of a share's programs, which run in `tier` by way of `lane`."""

    def __init__(self, device: Device, tier: Tier, lane: Lane) -> None:
        self._device = device
        self._tier = tier
        self._lane = lane
        #: of each program met, how often in a row it was written down in vain
        self._in_vain: weakref.WeakKeyDictionary[Program, int] = weakref.WeakKeyDictionary()
        self._kept: weakref.WeakKeyDictionary[Program, Capture] = weakref.WeakKeyDictionary()

    def begin(self, program: Program) -> Capture | None:
        """A job begins: what to play or to write down, None for a job that performs its entries one by one."""
        recorder, tier = self._device.recorder(), self._tier
        if recorder is None or tier.lockstep is not None or tier.arena.divided:
            return None
        capture = self._kept.get(program)
        if capture is not None:
            if capture.stands():
                return capture
            del self._kept[program]
            self._in_vain[program] = 0 if capture.served else self._in_vain[program] + 1
        if program not in self._in_vain:  # its first run brings its tiles
            self._in_vain[program] = 0 if _is_all_of_the_device(program) else ATTEMPTS
            return None
        if self._in_vain[program] >= ATTEMPTS or not self._stays(program):
            return None
        capture = self._kept[program] = Capture(program, recorder, tier, self._lane)
        return capture

    def _stays(self, program: Program) -> bool:
        """Whether its tiles are all there."""
        inputs = set(program.inputs.values())
        return not any(self._tier.of(tile).slot is None for tile in program.standing if tile not in inputs)


def _is_all_of_the_device(program: Program) -> bool:
    """Whether nothing of it is done by the host, or goes there."""
    return not any(
        isinstance(entry, Fetch) or (isinstance(entry, Operation) and entry.device == HOST) for entry in program.entries
    )


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that has nothing to wait for; RuntimeError if it has."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("work that must not wait waited for something")


def _access(program: Program, start: int, stop: int) -> dict[Tile, str]:
    """The persistent tiles that the entries from `start` to before `stop` use, and whether one changes them."""
    access: dict[Tile, str] = {}
    for entry in program.entries[start:stop]:
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            if tile.persistent:
                access[tile] = READ if how == READ and access.get(tile, READ) == READ else UPDATE
    return access


def _forget(recorder: Recorder, graphs: list[Any]) -> None:
    for graph in graphs:
        recorder.forget(graph)
