"""A cache of a model's programs, limited to the latest ones, so that a service with ever new shapes does not grow forever.

step.py records programs. A program that is dropped while it runs lives until its run ends.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from asynctile.program.program import Program

#: The most programs of a model, and the most entries of all of them, about 600 bytes each. FEW programs are kept however long
#: they are: a training needs its step before and after updates are placed, and the loss or logits in between.
PROGRAMS, ENTRIES, FEW = 32, 1 << 18, 4


class Programs:
    """At most PROGRAMS programs by the key that they were recorded for; the least recently used goes first. From any thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Program] = OrderedDict()
        self._lock = threading.Lock()

    def kept(self, key: Hashable) -> Program | None:
        """Return the program of `key` and count it as used just now; None if there is none."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def get(self, key: Hashable, record: Callable[[], Program]) -> Program:
        """Return the program of `key`, recorded if there is none.

        If there are too many programs, those unused for longest are dropped.
        """
        found = self.kept(key)
        if found is not None:
            return found
        program = record()  # not under the lock: it can take seconds
        with self._lock:
            program = self._kept.setdefault(key, program)
            self._kept.move_to_end(key)
            dropped = self._drop()
        del dropped  # not under the lock either: dropping a program frees many objects
        return program

    def __len__(self) -> int:
        return len(self._kept)

    def _drop(self) -> list[Program]:
        entries, dropped = sum(map(len, self._kept.values())), []
        while len(self._kept) > PROGRAMS or (len(self._kept) > FEW and entries > ENTRIES):
            dropped.append(self._kept.popitem(last=False)[1])
            entries -= len(dropped[-1])
        return dropped
