"""Packings kept on disk, beside the machine code of kernels: what took seconds to find is read at the next start.

`packed` is `pack` (asynctile/schedule/packing.py) with a memory. A file is named by a digest of all that a packing is a
function of, the code that finds it included, and holds numbers. They are used if they are whole, answer this very question,
and are a packing by which a step can run (asynctile/schedule/soundness.py); else the file is made anew. Who calls `packed`,
and in which thread, is packings.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from asynctile.kernels.cpu import cache_folder
from asynctile.program.operation import Operation
from asynctile.program.program import Entry, Program
from asynctile.schedule import packing as _packing
from asynctile.schedule.clock import Pace
from asynctile.schedule.packing import Numbered, Packing, pack
from asynctile.schedule.soundness import is_sound
from asynctile.schedule.uses import Uses
from asynctile.storage.cache import Cache

#: The folder beside kernels, and how files in it are called.
FOLDER, SUFFIX = "packings", ".packing"
#: The most files, the most bytes of all, and of one: that of 10,000 entries and as many moves has 400 KiB.
MOST, MOST_NBYTES, LARGEST_NBYTES = 64, 64 << 20, 8 << 20
#: Packings of fewer entries are found about as soon as read.
FEWEST = 256
_NUMBER = np.dtype("<i8")
_DIGEST_NBYTES = hashlib.sha256().digest_size


def _stamp(folder: Path) -> bytes:
    """Of the code that packs and that keeps packings; empty where its sources cannot be read."""
    try:
        sources = [path.read_bytes() for path in (*sorted(folder.glob("*.py")), Path(__file__))]
    except OSError:
        return b""
    return hashlib.sha256(b"".join(hashlib.sha256(source).digest() for source in sources)).digest()


#: When this was imported, as the code was that runs.
STAMP = _stamp(Path(_packing.__file__).parent)


def packed(program: Program, cap: int, *, alignment: int, pace: Pace, depth: int, has_link: bool) -> Packing | None:
    """What `pack` returns for the same arguments: read if it was kept, else found and kept. Blocks; no file is an error."""
    cache = _cache()
    if cache is None or len(program) < FEWEST:
        return pack(program, cap, alignment=alignment, pace=pace, depth=depth, has_link=has_link)
    uses, cap = Uses(program, alignment, has_link), cap // alignment * alignment
    key = _key(uses, (cap, alignment, tuple(pace), depth, has_link))
    content = cache.read(key.hex())
    if content is not None:
        try:
            return _decoded(content, key, uses, cap, alignment)
        except ValueError:
            pass  # the one that is found takes its place
    found = pack(program, cap, alignment=alignment, pace=pace, depth=depth, has_link=has_link)
    cache.keep(key.hex(), _encoded(found, key, uses))
    return found


def _cache() -> Cache | None:
    """None where none can be: no folder can be written, or nobody knows whose packings these would be."""
    parent = cache_folder()
    if parent is None or not STAMP:
        return None
    return Cache(parent, FOLDER, SUFFIX, most=MOST, most_nbytes=MOST_NBYTES, largest_nbytes=LARGEST_NBYTES)


def _key(uses: Uses, others: tuple[Any, ...]) -> bytes:
    """A digest of all that a packing is a function of: what `pack` asks of a program, and the `others` of its arguments.

    Neither names nor what a kernel computes is among it.
    """
    digest = hashlib.sha256(STAMP)
    digest.update(repr((others, uses.inputs, sorted(uses.rewritten.items()), sorted(uses.on_host))).encode())
    digest.update(repr([(tile.nbytes, tile.persistent) for tile in uses.tiles]).encode())
    for entry, used in zip(uses.program.entries, uses.entries, strict=True):
        # One by one: a text of them all would be made without letting another thread run.
        digest.update(repr((_work(entry), [tuple(use) for use in used])).encode())
    return digest.digest()


def _work(entry: Entry) -> tuple[int | None, int]:
    """What its time is estimated from."""
    return (entry.flops if isinstance(entry, Operation) else None), sum(tile.nbytes for tile in entry.tiles)


def _encoded(packing: Packing | None, key: bytes, uses: Uses) -> bytes:
    """Numbers of 8 bytes, behind a digest of them and of the key. None of them where a step does not fit."""
    numbers = b"" if packing is None else np.fromiter(_flat(Numbered.of(packing, uses)), _NUMBER).tobytes()
    return hashlib.sha256(key + numbers).digest() + numbers


def _flat(found: Numbered) -> Iterator[int]:
    """The peak, how many numbers follow of those that stand, of moves by entry, and of births; and all these."""
    births = [(entry, tile, offset) for entry, born in found.births.items() for tile, offset in born]
    moves = list(chain.from_iterable(found.moves))
    yield from (found.peak_nbytes, len(found.start), len(births), len(moves))
    yield from map(len, found.moves)
    for rows in (found.start.items(), births, moves):
        yield from chain.from_iterable(rows)


def _decoded(content: bytes, key: bytes, uses: Uses, cap: int, alignment: int) -> Packing | None:
    """ValueError for bytes that are not a packing of `uses` that was kept under this key."""
    digest, numbers = content[:_DIGEST_NBYTES], content[_DIGEST_NBYTES:]
    if digest != hashlib.sha256(key + numbers).digest():
        raise ValueError("damaged, or kept under another key")
    if not numbers:
        return None
    found = _numbered(np.frombuffer(numbers, _NUMBER), len(uses) + 1)
    if not is_sound(found, uses, cap, alignment):
        raise ValueError("no step can run by it")
    return found.packing(uses, cap, alignment)


def _numbered(values: np.ndarray, places: int) -> Numbered:
    """What `_flat` wrote, with moves at as many `places`. ValueError where counts are not those of what follows."""
    head, counts, rest = values[:4].tolist(), values[4 : 4 + places].tolist(), values[4 + places :]
    if len(head) < 4 or len(counts) < places or min(*head, *counts) < 0:
        raise ValueError("truncated, or a count below 0")
    peak, standing, born, moved = head
    if len(rest) != 2 * standing + 3 * (born + moved) or sum(counts) != moved:
        raise ValueError("of another length than its counts say")
    start = dict(rest[: 2 * standing].reshape(-1, 2).tolist())
    births: dict[int, list[tuple[int, int]]] = {}
    for entry, tile, offset in rest[2 * standing : 2 * standing + 3 * born].reshape(-1, 3).tolist():
        births.setdefault(entry, []).append((tile, offset))
    moves = iter(map(tuple, rest[2 * standing + 3 * born :].reshape(-1, 3).tolist()))
    return Numbered(start, [list(islice(moves, count)) for count in counts], births, peak)
