"""Places in a file: which bytes of the spill file belong to which tile.

Covers the bookkeeping only, pure and on one thread: blocks cut exactly to size, a free list for each size, holes that are
joined and cut anew when another program wants other sizes, and pieces that somebody else cuts further. The file is
storage/container.py, the transfers are storage/spill.py, which tiles come here is storage/ledger.py. The way not taken, slots
of fixed sizes as in storage/arena.py, would waste a rest in each slot; a file below RAM holds too many tiles for that.
"""

from __future__ import annotations

from collections.abc import Mapping

from asynctile.storage.errors import BudgetError
from asynctile.storage.sizes import format_size

__all__ = ["Block", "Blocks"]


class Block:
    """A place of `nbytes` at `offset` in the file.

    guard: what its next owner must wait for (opaque here). checksum: of the bytes that were last written here whole, kept in
    RAM, so that a write that the disk lost is found out too; None: nothing that may be read.
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
    """Which bytes below `cap` (None: no cap) are free. Every block begins and ends at a multiple of `alignment`."""

    def __init__(self, cap: int | None, alignment: int) -> None:
        self.alignment = alignment
        self.cap = None if cap is None else cap - cap % alignment
        self.used_nbytes = 0
        self.peak_nbytes = 0
        #: No block, free or taken, reaches beyond this byte.
        self.end = 0
        self._free: dict[int, list[Block]] = {}
        #: Spans (offset, nbytes) below `end` that belong to no block, ascending.
        self._holes: list[tuple[int, int]] = []

    def align(self, nbytes: int) -> int:
        """`nbytes` as a block takes it: up to the next multiple of the alignment."""
        return max(-(-nbytes // self.alignment), 1) * self.alignment

    def reserve(self, counts: Mapping[int, int]) -> None:
        """Make sure that so many blocks of each size can be taken; BudgetError, and nothing changed, if they cannot.

        It replaces earlier reservations: their blocks may be cut anew. Nothing may be in flight: guards of free blocks
        are forgotten.
        """
        wanted: dict[int, int] = {}
        for nbytes, count in counts.items():  # two sizes may become one
            wanted[self.align(nbytes)] = wanted.get(self.align(nbytes), 0) + count
        missing = {size: count - len(self._free.get(size, ())) for size, count in wanted.items()}
        holes, made, end = _place(missing, self._holes, self.end)
        if end > self.end:
            # Before the file grows, look whether what lies free in other sizes would do.
            holes, below = self._merged()
            holes, made, end = _place(wanted, holes, below)
            if self.cap is not None and end > self.cap:
                raise BudgetError(
                    f"spill_limit of {format_size(self.cap)} is below the {format_size(end)} ({end} bytes) that is needed: "
                    "every tile alive at once must find a place in the spill file, also those that RAM holds; raise "
                    "spill_limit or leave it out",
                    floor=end,
                )
            self._free = {}
        self._holes, self.end = holes, end
        for block in reversed(made):  # the lowest offset is popped first
            self._free.setdefault(block.nbytes, []).append(block)

    def state(self) -> tuple[dict[int, list[Block]], list[tuple[int, int]], int]:
        """What `restore` brings back, if nothing was taken or given meanwhile."""
        return {size: list(blocks) for size, blocks in self._free.items()}, list(self._holes), self.end

    def restore(self, state: tuple[dict[int, list[Block]], list[tuple[int, int]], int]) -> None:
        self._free, self._holes, self.end = state

    def take(self, nbytes: int, what: str) -> Block:
        """A block of at least `nbytes` for `what`; BudgetError when the cap is reached.

        What was given last goes first: the file system has written there before, which is faster than the first time.
        """
        free = self._free.get(self.align(nbytes))
        if not free:
            return self.cut(nbytes, what)
        # Another object for another owner: reads that its last owner began still compare with the checksum of theirs.
        last = free.pop()
        block = Block(last.offset, last.nbytes)
        block.guard = last.guard
        self._count(block)
        return block

    def give(self, block: Block) -> None:
        """Take a block back; reads of it may be on their way. Its guard goes to the next owner, its checksum does not."""
        self.used_nbytes -= block.nbytes
        self._free.setdefault(block.nbytes, []).append(block)

    def cut(self, nbytes: int, what: str) -> Block:
        """A block of at least `nbytes` for `what` from no other block, free or not; BudgetError when the cap is reached.

        Free blocks stay as they are, since `reserve` promised them, and reads of them may be on their way. Holes are nobody's:
        `reserve` made them with nothing in flight, or `join` did. So what is cut has no guard.
        """
        nbytes = self.align(nbytes)
        holes, (block,), end = _place({nbytes: 1}, self._holes, self.end)
        if self.cap is not None and end > self.cap:
            raise BudgetError(
                f"{what} needs {format_size(nbytes)} of the spill file; {format_size(self.cap - self.used_nbytes)} of "
                f"{format_size(self.cap)} are free, not all in one piece; raise spill_limit",
                floor=end,
            )
        self._holes, self.end = holes, end
        self._count(block)
        return block

    def join(self, block: Block) -> None:
        """Take back a block of which nothing is in flight: it becomes a hole, one with its neighbours, for any size."""
        self.used_nbytes -= block.nbytes
        self._holes, self.end = _joined([*self._holes, (block.offset, block.nbytes)], self.end)

    def _count(self, block: Block) -> None:
        self.used_nbytes += block.nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.used_nbytes)

    def _merged(self) -> tuple[list[tuple[int, int]], int]:
        """All that is free as holes, and the end of what is taken."""
        spans = [(block.offset, block.nbytes) for blocks in self._free.values() for block in blocks]
        return _joined(spans + self._holes, self.end)


def _joined(spans: list[tuple[int, int]], end: int) -> tuple[list[tuple[int, int]], int]:
    """Spans as holes, ascending, neighbours joined, and the new end: a hole at the end is none."""
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
    """Cut blocks, largest first, from `holes` and then beyond `end`; the holes that remain, the blocks and the new end."""
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
