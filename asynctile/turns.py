"""Prefetch 0: loads and work take turns, the run without overlap that shows what overlap is worth."""

from __future__ import annotations

from asynctile.stream import Event


class Turns:
    """Each load waits for the work before it, each piece of work for the loads before it; write-backs overlap as ever."""

    def __init__(self) -> None:
        self._loads: list[Event] = []
        self._work: list[Event] = []

    def work(self) -> tuple[Event, ...]:
        """What a load must wait for."""
        return tuple([event for event in self._work if not event.done])

    def loads(self) -> tuple[Event, ...]:
        """What work must wait for."""
        return tuple([event for event in self._loads if not event.done])

    def loaded(self, event: Event) -> None:
        self._loads = [*self.loads(), event]

    def worked(self, event: Event) -> None:
        self._work = [*self.work(), event]
