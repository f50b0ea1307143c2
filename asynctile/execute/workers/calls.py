"""A schedule as calls and copies for compiled workers: its tables, without addresses.

tables.py says what is in the tables, layout.py how a call is laid out in them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.execute.template import Kernels, Template
from asynctile.execute.workers.layout import Block, layout
from asynctile.execute.workers.native import REALS, WIDTHS
from asynctile.execute.workers.tables import ANY_DEVICE, COPY, DOWNLOAD, Tables
from asynctile.program.operation import Operation
from asynctile.schedule.schedule import RAM, Arrays, Kind, Schedule, Scheduled

#: Words of a copy: target, source, number of bytes.
_COPY_WORDS = 3


class Calls(Template):
    """A template for compiled workers. ValueError if a kernel has no Numba machine code for its types, so no address to call.

    over_link: whether results come over a link; else they are copied within one memory.
    """

    played = True

    def __init__(self, schedule: Schedule, kernels: Kernels, over_link: bool) -> None:
        super().__init__(schedule, {})
        self._over_link = over_link
        self._kernels = kernels
        self._blocks: dict[Any, Block] = {}
        #: positions in the words of addresses of places, and which place; of addresses of numbers, and which number
        self._spots: list[int] = []
        self._places_there: list[int] = []
        self._number_spots: list[int] = []
        self._numbers_there: list[int] = []
        self._number_of_place = {place: number for number, place in enumerate(self.places)}
        self._tables = self._made()

    def bound(self, arrays: Arrays, numbers: NDArray[np.float64]) -> Tables:
        views = [arrays(place, (place.nbytes,), np.uint8) for place in self.places]
        addresses = np.array([view.ctypes.data for view in views], np.int64)
        words = self._tables.words.copy()
        words[self._spots] = addresses[self._places_there]
        words[self._number_spots] = numbers.ctypes.data + numbers.itemsize * np.asarray(self._numbers_there, np.int64)
        return replace(self._tables, words=words, keep=(views, numbers))

    def _made(self) -> Tables:
        entries = self.schedule.entries
        blocks = [self._block(entry.what) if isinstance(entry.what, Operation) else None for entry in entries]
        sizes = [_size(entry, block) for entry, block in zip(entries, blocks, strict=True)]
        words_at = np.concatenate([[0], np.cumsum(sizes)])[:-1].astype(np.int64)
        words = np.zeros(sum(sizes) + WIDTHS[-1], np.int64)
        reals = np.zeros((len(entries), REALS))
        for index, (entry, block, start) in enumerate(zip(entries, blocks, words_at.tolist(), strict=True)):
            if entry.kind is Kind.TRANSFER:
                continue  # the host carries it out (transfers.py)
            numbers = [self._number_of_place[place] for place in entry.places]
            if block is None:
                self._spots += (start, start + 1)
                self._places_there += numbers
                words[start + 2] = entry.nbytes
                continue
            words[start : start + block.count] = block.words
            reals[index, : len(block.reals)] = block.reals
            spots = [start + spot for spot in block.pointers]
            self._spots += spots[: len(numbers)]
            self._places_there += numbers
            assert isinstance(entry.what, Operation)
            number = self.schedule.program.place_of(entry.what)
            if number is not None:
                self._number_spots.append(spots[-1])
                self._numbers_there.append(number)
        return Tables(
            kinds=np.array([self._kind(entry) for entry in entries], np.int8),
            devices=np.array([_device(entry) for entry in entries], np.int8),
            stretches=np.array([entry.stretch for entry in entries], np.int32),
            reports=np.array([entry.reports for entry in entries], np.int8),
            address=np.array([0 if block is None else block.address for block in blocks], np.int64),
            counts=np.array(sizes, np.int32),
            words=words, words_at=words_at, reals=reals,
            what=[entry.what for entry in entries],
            **self._edges(),
        )  # fmt: skip

    def _kind(self, entry: Scheduled) -> int:
        """Return the kind of an entry as workers know it."""
        if entry.kind is Kind.FETCH:
            return DOWNLOAD if self._over_link else COPY
        return entry.kind

    def _edges(self) -> dict[str, NDArray[Any]]:
        """Return the edges as arrays, sorted by the earlier entry."""
        entries = self.schedule.entries
        before: list[int] = []
        behind: list[int] = []
        travels: list[int] = []
        for index, entry in enumerate(entries):
            before += (*entry.waits, *entry.after)
            behind += [index] * (len(entry.waits) + len(entry.after))
            travels += [1] * len(entry.waits) + [0] * len(entry.after)
        order = np.argsort(np.array(before, np.int64), kind="stable")
        successors = np.array(behind, np.int32)[order]
        counts = np.bincount(np.array(before, np.int64), minlength=len(entries))
        return {
            "needs": np.bincount(successors, minlength=len(entries)).astype(np.int32),
            "successors_at": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            "successors": successors,
            "travels": np.array(travels, np.int8)[order],
        }

    def _block(self, operation: Operation) -> Block:
        name, shapes = operation.kernel, tuple((tile.shape, tile.dtype) for tile in operation.operands)
        has_number = operation.number is not None
        key = name, shapes, tuple((type(param), param) for param in operation.params), has_number
        if key not in self._blocks:
            kernel = self.kernels[name] = self._kernels[name]
            block = layout(kernel, shapes, operation.params, has_number)
            if block is None:
                raise ValueError(f"kernel {name} has no machine code for {operation}")
            self._blocks[key] = block
        return self._blocks[key]


def _size(entry: Scheduled, block: Block | None) -> int:
    """Return the number of words of an entry."""
    if block is not None:
        return block.count
    return 0 if entry.kind is Kind.TRANSFER else _COPY_WORDS


def _device(entry: Scheduled) -> int:
    """Return the device whose workers carry out an entry."""
    is_in_ram = entry.kind in (Kind.OPERATION, Kind.COPY) and entry.places[0].tier == RAM
    return ANY_DEVICE if is_in_ram else entry.device
