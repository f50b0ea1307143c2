"""The programs of a model that are kept: those used last, so that a service with ever new shapes does not grow for ever.

What is in a program is step.py's. One that is dropped while it runs lives until its run has ended.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from asynctile.program.program import Program

#: The most programs of a model, and the most of their entries, of about 600 bytes each. But as many as FEW are kept however
#: long they are: a training needs its step, with updates placed and before, and the loss or logits between.
PROGRAMS, ENTRIES, FEW = 32, 1 << 18, 4


class Programs:
    """Programs by what they were recorded for. From any thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Program] = OrderedDict()
        self._lock = threading.Lock()

    def kept(self, key: Hashable) -> Program | None:
        """The program of `key`, which was used just now; None if it is not there."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def get(self, key: Hashable, record: Callable[[], Program]) -> Program:
        """The program of `key`, recorded if it is not there; the ones unused for longest go, if there are too many."""
        found = self.kept(key)
        if found is not None:
            return found
        program = record()  # not under the lock: it takes up to seconds
        with self._lock:
            program = self._kept.setdefault(key, program)
            self._kept.move_to_end(key)
            dropped = self._drop()
        del dropped  # not under the lock either: much ends with a program
        return program

    def __len__(self) -> int:
        return len(self._kept)

    def _drop(self) -> list[Program]:
        entries, dropped = sum(map(len, self._kept.values())), []
        while len(self._kept) > PROGRAMS or (len(self._kept) > FEW and entries > ENTRIES):
            dropped.append(self._kept.popitem(last=False)[1])
            entries -= len(dropped[-1])
        return dropped
