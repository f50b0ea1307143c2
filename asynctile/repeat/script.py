"""The device and the spill folder of a rehearsal: nothing happens in them, and what they are asked for is written down.

What comes of it is a schedule's entries; who asks, and for what, is rehearsal.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from asynctile.device.base import Device
from asynctile.device.dry import DONE, DryDevice, DryMemory, DrySpill
from asynctile.program.operation import Operation
from asynctile.schedule.schedule import DISK, RAM, RESULT, TOP, Kind, Place, Scheduled
from asynctile.storage.blocks import Block
from asynctile.storage.slot import Slot
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, StreamEvents
from asynctile.streams.run_ahead import RunAhead


class Noted(StreamEvent):
    """The event of an entry, which is not done while its step is written down: so whoever uses its tiles says that it waits for
    it. index: the entry's.
    """

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index


class Boundless(RunAhead):
    """Remembers nothing of what was enqueued: the host is never too far ahead of a device on which nothing happens."""

    def add(self, event: StreamEvent, nbytes: int = 0, *, beside: bool = False) -> None:
        pass


class PlaceMemory(DryMemory):
    """Memory whose arrays are places. tier: its number."""

    def __init__(self, tier: int) -> None:
        self._tier = tier

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Any:
        return Place(self._tier, slot.nbytes, slot.index)


class Script(DryDevice):
    """The device of a rehearsal. entries: what it was asked for since `begin`, None before; noted: the events of those.
    stretch: in which that is.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device.name, device.has_link, device.grain)
        self._memory = PlaceMemory(TOP)
        self.host = PlaceMemory(RAM)
        self.entries: list[Scheduled] | None = None
        self.noted: list[Noted] = []
        self.stretch = self._fetches = 0

    def begin(self, entries: list[Scheduled]) -> None:
        """Write a step down from now on; what was written down before is over."""
        for event in self.noted:
            event.done = True
        self.entries, self.noted, self._fetches = entries, [], 0

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._memory.array(slot, shape, dtype)

    def launch(
        self, operation: Operation, arrays: Sequence[Any], number: Any, waits: StreamEvents, after: StreamEvents = ()
    ) -> StreamEvent:
        return self.write(Kind.OPERATION, operation, arrays, waits, after)

    launch_on_host = launch

    def upload(
        self, target: Any, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        return self.write(Kind.UPLOAD, what, (target, source), waits, after)

    def download(
        self, target: Any, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        if target is None:
            return self._fetch(what, source, waits, after)
        return self.write(Kind.DOWNLOAD, what, (target, source), waits, after)

    def copy(
        self, target: Any, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        return self.write(Kind.COPY, what, (target, source), waits, after)

    def _fetch(self, what: object, source: Any, waits: StreamEvents, after: StreamEvents) -> StreamEvent:
        """A result of a run without bytes, which has no array for it: the next in order."""
        assert isinstance(what, Tile)
        place = Place(RESULT, what.nbytes, self._fetches)
        self._fetches += self.entries is not None
        return self.write(Kind.FETCH, what, (place, source), waits, after)

    def write(self, kind: Kind, what: Any, places: Sequence[Any], waits: StreamEvents, after: StreamEvents) -> StreamEvent:
        """Note an entry, if a step is being written down."""
        if self.entries is None:
            return DONE
        needed = sorted(_indices(waits))
        behind = sorted(_indices(after).difference(needed))
        self.entries.append(Scheduled(kind, what, tuple(places), tuple(needed), tuple(behind), self.stretch))
        self.noted.append(Noted(len(self.entries) - 1))
        return self.noted[-1]


class DryTransfers:
    """The stream of a folder that has no file: what it is asked for becomes an entry of `script`."""

    def __init__(self, script: Script, spill: DrySpill) -> None:
        self.script = script
        self.spill = spill

    def enqueue(
        self, waits: StreamEvents, work: Callable[..., Any], args: tuple[Block, Place, str], *,
        after: StreamEvents = (), is_copy: bool = False, what: object = None,
    ) -> StreamEvent:  # fmt: skip
        block, pages, _ = args
        below = Place(DISK, block.nbytes, block.offset)
        places = (below, pages) if work == self.spill.write else (pages, below)
        return self.script.write(Kind.TRANSFER, what, places, waits, after)


def _indices(events: StreamEvents) -> set[int]:
    return {event.index for event in events if isinstance(event, Noted) and not event.done}
