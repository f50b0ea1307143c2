"""A schedule as tables, all but the addresses: what is worked out once, however often the tiers are cut anew.

What stands in the tables is tables.py, how a call lies in them layout.py, which slot a place is bound.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asynctile.play.layout import Block, layout
from asynctile.play.native import WIDTHS
from asynctile.play.tables import COPY, DOWNLOAD, Tables
from asynctile.program.operation import NO_NUMBER, Operation
from asynctile.schedule.schedule import DISK, Kind, Schedule, Scheduled

Kernels = Mapping[str, Callable[..., None]]
#: Of a copy: where to, where from, how many bytes.
_COPY_WORDS = 3
#: Of what is counted: bytes written to the file. The others go by their kinds.
_WRITTEN = len(Kind)


class Counts(NamedTuple):
    """How many operations, and how many bytes over the link, between RAM and the file, and of results."""

    operations: int
    uploaded: int
    downloaded: int
    read: int
    written: int
    fetched: int


class Template:
    """schedule, and the places in memory that it uses, by number. kernels: all and only those that it calls.

    over_link: whether results come over a link; else they are copied within one memory.
    ValueError if a kernel cannot be called by its address, since it is none of Numba's for these types.
    """

    def __init__(self, schedule: Schedule, kernels: Kernels, over_link: bool) -> None:
        self.schedule = schedule
        self._over_link = over_link
        self.places = [place for place in dict.fromkeys(schedule.places()) if place.tier != DISK]
        self.kernels: dict[str, Callable[..., None]] = {}
        self._kernels = kernels
        self._blocks: dict[Any, Block] = {}
        #: where in the words addresses go: of places, by their number, and of numbers, by theirs
        self._spots: list[int] = []
        self._places_there: list[int] = []
        self._number_spots: list[int] = []
        self._numbers_there: list[int] = []
        self._number_of = {place: number for number, place in enumerate(self.places)}
        self._tables = self._made()
        self._amounts = np.array([entry.nbytes if entry.kind is not Kind.OPERATION else 1 for entry in schedule.entries])
        # By kind, but for transfers to the file, which are no reads.
        self._ways = np.array([_WRITTEN if entry.places[0].tier == DISK else entry.kind for entry in schedule.entries])
        self._totals = self._summed(self._amounts)

    def bound(self, addresses: NDArray[np.int64], numbers: NDArray[np.float64], keep: Any) -> Tables:
        """The tables, with the address of each place, by number. numbers: where kernels report. keep: what must live."""
        words = self._tables.words.copy()
        words[self._spots] = addresses[self._places_there]
        words[self._number_spots] = numbers.ctypes.data + numbers.itemsize * np.asarray(self._numbers_there, np.int64)
        return self._tables.bound(words, (keep, numbers))

    def counts(self, ran: NDArray[np.bool_]) -> Counts:
        """Of the entries that ran (n,)."""
        return self._totals if ran.all() else self._summed(self._amounts * ran)

    def _summed(self, amounts: NDArray[np.int64]) -> Counts:
        found = np.bincount(self._ways, amounts, minlength=len(Kind) + 1).astype(np.int64).tolist()
        ways = Kind.OPERATION, Kind.UPLOAD, Kind.DOWNLOAD, Kind.TRANSFER, _WRITTEN, Kind.FETCH
        return Counts(*(found[way] for way in ways))

    def _made(self) -> Tables:
        entries = self.schedule.entries
        blocks = [self._block(entry.what) if isinstance(entry.what, Operation) else None for entry in entries]
        sizes = [_size(entry, block) for entry, block in zip(entries, blocks, strict=True)]
        words_at = np.concatenate([[0], np.cumsum(sizes)])[:-1].astype(np.int64)
        words = np.zeros(sum(sizes) + WIDTHS[-1], np.int64)
        reals = np.zeros((len(entries), 4))
        for index, (entry, block, start) in enumerate(zip(entries, blocks, words_at.tolist(), strict=True)):
            if entry.kind is Kind.TRANSFER:
                continue  # the host knows its places (transfers.py)
            numbers = [self._number_of[place] for place in entry.places]
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
            if entry.what.number is not None:
                self._number_spots.append(spots[-1])
                self._numbers_there.append(entry.what.number % (len(self.schedule.program.numbers) + 1))
        return Tables(
            kinds=np.array([self._kind(entry) for entry in entries], np.int8),
            stretches=np.array([entry.stretch for entry in entries], np.int32),
            reports=np.array([_reports(entry.what) for entry in entries], np.int8),
            address=np.array([0 if block is None else block.address for block in blocks], np.int64),
            counts=np.array(sizes, np.int32),
            words=words, words_at=words_at, reals=reals,
            what=[entry.what for entry in entries],
            **self._edges(),
        )  # fmt: skip

    def _kind(self, entry: Scheduled) -> int:
        """As workers know it."""
        if entry.kind is Kind.FETCH:
            return DOWNLOAD if self._over_link else COPY
        return entry.kind

    def _edges(self) -> dict[str, NDArray[Any]]:
        """Who waits for whom, by the earlier entry."""
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
    """Its words."""
    if block is not None:
        return block.count
    return 0 if entry.kind is Kind.TRANSFER else _COPY_WORDS


def _reports(what: object) -> bool:
    return isinstance(what, Operation) and what.number not in (None, NO_NUMBER)
