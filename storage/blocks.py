"""Blocks of the spill file: which bytes of the file belong to which tile.

Pure bookkeeping, on one thread. Blocks are cut exactly to size and kept in one free list per size. Unused spans (holes) are
merged, and cut again when another program wants other sizes. A block can also be handed out for its owner to cut further.

The file is storage/container.py, the transfers are storage/spill.py, and storage/ledger.py decides which tiles come here.

The way not taken: slots of a few fixed sizes, as in storage/arena.py. Each slot would waste its rest, and a file below RAM
holds too many tiles for that.
"""

from __future__ import annotations

from collections.abc import Mapping

from asynctile.storage.errors import BudgetError
from asynctile.storage.sizes import format_size

__all__ = ["Block", "Blocks"]


class Block:
    """A place of `nbytes` bytes at byte `offset` of the file.

    guard: events that the next owner must wait for (opaque here).
    checksum: of the bytes that were last written here completely; None: nothing that may be read. It is kept in RAM, so a write
    that the disk lost is detected too.
    """

    __slots__ = ("offset", "nbytes", "guard", "checksum")

    def __init__(self, offset: int, nbytes: int) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self.guard: tuple[object, ...] = ()
        self.checksum: int | None = None

    def __repr__(self) -> str:
        return f"Block(offset={self.offset}, nbytes={self.nbytes})"


class Blocks:
    """The blocks of a file of at most `cap` bytes (None: no cap). Blocks start and end at multiples of `alignment`."""

    def __init__(self, cap: int | None, alignment: int) -> None:
        self.alignment = alignment
        self.cap = None if cap is None else cap - cap % alignment
        self.used_nbytes = 0
        self.peak_nbytes = 0
        #: No block, free or taken, extends beyond this byte.
        self.end = 0
        self._free: dict[int, list[Block]] = {}
        #: Spans (offset, nbytes) below `end` that belong to no block, ascending.
        self._holes: list[tuple[int, int]] = []

    def align(self, nbytes: int) -> int:
        """Return `nbytes` rounded up to a multiple of the alignment, at least one."""
        return max(-(-nbytes // self.alignment), 1) * self.alignment

    def reserve(self, counts: Mapping[int, int]) -> None:
        """Make sure that so many blocks of each size, {nbytes: count}, can be taken.

        Replaces earlier reservations: their free blocks may be cut anew. Nothing may be in flight, because guards of free
        blocks are forgotten. If the cap is too small, raises BudgetError and changes nothing.
        """
        wanted: dict[int, int] = {}
        for nbytes, count in counts.items():  # two sizes may round up to the same one
            wanted[self.align(nbytes)] = wanted.get(self.align(nbytes), 0) + count
        missing = {size: count - len(self._free.get(size, ())) for size, count in wanted.items()}
        holes, made, end = _place(missing, self._holes, self.end)
        if end > self.end:
            # Before the file grows, check whether free blocks of other sizes, merged, would be enough.
            holes, below = self._merged()
            holes, made, end = _place(wanted, holes, below)
            if self.cap is not None and end > self.cap:
                raise BudgetError(
                    f"spill_limit of {format_size(self.cap)} is below the {format_size(end)} ({end} bytes) that is needed: "
                    "the spill file needs a place for all tiles that are alive at the same time, also for those that RAM "
                    "holds; raise spill_limit or leave it out",
                    floor=end,
                )
            self._free = {}
        self._holes, self.end = holes, end
        for block in reversed(made):  # the lowest offset is popped first
            self._free.setdefault(block.nbytes, []).append(block)

    def state(self) -> tuple[dict[int, list[Block]], list[tuple[int, int]], int]:
        """Return a snapshot for `restore`, valid as long as no block is taken or given in between."""
        return {size: list(blocks) for size, blocks in self._free.items()}, list(self._holes), self.end

    def restore(self, state: tuple[dict[int, list[Block]], list[tuple[int, int]], int]) -> None:
        self._free, self._holes, self.end = state

    def take(self, nbytes: int, what: str) -> Block:
        """Take a block of at least `nbytes`; BudgetError, which names its user `what`, when the cap is reached.

        Reuses the most recently freed block first: the file system has already allocated and written it, so it is faster.
        """
        free = self._free.get(self.align(nbytes))
        if not free:
            return self.cut(nbytes, what)
        # A new object for the new owner: reads that the last owner began still compare with the old object's checksum.
        last = free.pop()
        block = Block(last.offset, last.nbytes)
        block.guard = last.guard
        self._count(block)
        return block

    def give(self, block: Block) -> None:
        """Return a block to the free list. Reads of it may still be in flight.

        The next owner inherits its guard, not its checksum.
        """
        self.used_nbytes -= block.nbytes
        self._free.setdefault(block.nbytes, []).append(block)

    def cut(self, nbytes: int, what: str) -> Block:
        """Cut a new block of at least `nbytes` for `what`, never from a free block; BudgetError when the cap is reached.

        Free blocks stay as they are: `reserve` promised them, and reads of them may be in flight. Holes have nothing in flight,
        because `reserve` and `join` make them only then. So the new block needs no guard.
        """
        nbytes = self.align(nbytes)
        holes, (block,), end = _place({nbytes: 1}, self._holes, self.end)
        if self.cap is not None and end > self.cap:
            raise BudgetError(
                f"{what} needs {format_size(nbytes)} of the spill file; {format_size(self.cap - self.used_nbytes)} of "
                f"{format_size(self.cap)} are free, but not in one piece; raise spill_limit",
                floor=end,
            )
        self._holes, self.end = holes, end
        self._count(block)
        return block

    def join(self, block: Block) -> None:
        """Turn a block with nothing in flight into a hole, merged with its neighbors and usable for any size."""
        self.used_nbytes -= block.nbytes
        self._holes, self.end = _joined([*self._holes, (block.offset, block.nbytes)], self.end)

    def _count(self, block: Block) -> None:
        self.used_nbytes += block.nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.used_nbytes)

    def _merged(self) -> tuple[list[tuple[int, int]], int]:
        """Return everything that is free, as holes, and the end of the bytes that are taken."""
        spans = [(block.offset, block.nbytes) for blocks in self._free.values() for block in blocks]
        return _joined(spans + self._holes, self.end)


def _joined(spans: list[tuple[int, int]], end: int) -> tuple[list[tuple[int, int]], int]:
    """Return spans as ascending holes with neighbors merged, and the new end: a hole that touches the end is cut off."""
    holes: list[tuple[int, int]] = []
    for offset, nbytes in sorted(spans):
        if holes and sum(holes[-1]) == offset:
            holes[-1] = (holes[-1][0], holes[-1][1] + nbytes)
        else:
            holes.append((offset, nbytes))
    if holes and sum(holes[-1]) == end:
        end, _ = holes.pop()
    return holes, end


def _place(
    counts: Mapping[int, int], holes: list[tuple[int, int]], end: int
) -> tuple[list[tuple[int, int]], list[Block], int]:
    """Cut blocks, the largest first, from `holes` and then beyond `end`.

    Returns the remaining holes, the blocks and the new end.
    """
    made: list[Block] = []
    for size in sorted(counts, reverse=True):
        count, rest = counts[size], []
        for offset, nbytes in holes:
            cut = max(min(count, nbytes // size), 0)
            made += [Block(offset + index * size, size) for index in range(cut)]
            count -= cut
            if nbytes > cut * size:
                rest.append((offset + cut * size, nbytes - cut * size))
        holes = rest
        made += [Block(end + index * size, size) for index in range(count)]
        end += max(count, 0) * size
    return holes, made, end
