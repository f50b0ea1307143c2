"""Prefetch 0: loads and work take turns, the run without overlap that shows what overlap is worth."""

from __future__ import annotations

from asynctile.streams.event import StreamEvent


class Lockstep:
    """Each load waits for the work before it, each piece of work for the loads before it; write-backs overlap as ever."""

    def __init__(self) -> None:
        self._loads: list[StreamEvent] = []
        self._work: list[StreamEvent] = []

    def work(self) -> tuple[StreamEvent, ...]:
        """What a load must wait for."""
        return tuple([event for event in self._work if not event.done])

    def loads(self) -> tuple[StreamEvent, ...]:
        """What work must wait for."""
        return tuple([event for event in self._loads if not event.done])

    def loaded(self, event: StreamEvent) -> None:
        self._loads = [*self.loads(), event]

    def worked(self, event: StreamEvent) -> None:
        self._work = [*self.work(), event]
