"""Checksums of the files of a folder, kept in `checksums.json` beside them, so that a flipped bit is noticed.

Covers taking and checking them. They guard against disks and copies, not against anyone's intent. A folder without
the file is taken as it is: others who write the same layout know nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import xxhash

from asynctile.storage.errors import CheckpointError
from asynctile.storage.folder import read_json, unreadable
from asynctile.storage.input import open_file, shown

__all__ = ["CHECKSUMS", "check_files", "checksum", "checksum_record"]

CHECKSUMS = "checksums.json"
_ALGORITHM = "xxh3_64"
_PIECE_NBYTES = 4 << 20


def checksum(path: Path, tick: Callable[[], object] = bool, limit: int | None = None) -> str:
    """The checksum of a whole file, read piece by piece; `tick` is called after each. OSError, also for one of more than
    `limit` bytes.
    """
    digest = xxhash.xxh3_64()
    piece = memoryview(bytearray(_PIECE_NBYTES))
    with open_file(path, limit=limit) as file:
        while nbytes := file.readinto(piece):
            digest.update(piece[:nbytes])
            tick()
    return digest.hexdigest()


def checksum_record(checksums: dict[str, str]) -> dict[str, Any]:
    """What `checksums.json` holds for checksums by file name."""
    return {"algorithm": _ALGORITHM, "files": checksums, "record": _of_table(checksums)}


def _of_table(table: dict[str, Any]) -> str:
    """So that a flipped bit in the name of a file does not leave it unchecked."""
    digest: str = xxhash.xxh3_64_hexdigest(json.dumps(table, sort_keys=True).encode())
    return digest


def check_files(
    folder: Path,
    names: Iterable[str],
    tick: Callable[[], object] = bool,
    *,
    others: Iterable[str] = (),
    limit: int | None = None,
) -> None:
    """CheckpointError for the first of the files `names` of `folder` whose bytes are not those that were saved.

    A folder without `checksums.json` is not looked at. tick: called all the time. others: files that are looked at only if
    they were saved. limit: the most bytes of any of them; None: whoever asks knows how long they are, and reading takes
    as long.
    """
    record = folder / CHECKSUMS
    if not record.exists():
        return
    table = read_json(record)
    if not isinstance(table, dict) or not isinstance(table.get("files"), dict):
        raise CheckpointError(f"{record} is damaged: it has no checksums by file; use another checkpoint or copy it again")
    if table.get("algorithm") != _ALGORITHM:
        raise CheckpointError(f"{record} has checksums of kind {shown(table.get('algorithm'))}, expected {_ALGORITHM!r}; "
                              "update asynctile, or delete that file to load unchecked")
    whole = _of_table(table["files"])
    if table.get("record", whole) != whole:  # older ones have none of themselves
        raise CheckpointError(f"{record} is damaged: it is not what was saved; use another checkpoint, copy it again, or "
                              "delete that file to load unchecked")
    for name in (*names, *(name for name in others if name in table["files"])):
        expected = table["files"].get(name)
        if expected is None:
            raise CheckpointError(f"{record} is damaged: it has no checksum of {name}; use another checkpoint, copy it again, "
                                  "or delete that file to load unchecked")
        try:
            found = checksum(folder / name, tick, limit)
        except OSError as error:
            raise unreadable(folder / name, error) from error
        if found != expected:
            raise CheckpointError(
                f"{folder / name} is damaged: its checksum is {found} and was {shown(expected)} when it was saved; use another "
                f"checkpoint or copy it again (if you changed it on purpose, delete {CHECKSUMS} beside it)"
            )
