"""Checksums of the files in a folder, kept beside them in `checksums.json`, to detect flipped bits.

Covers computing and checking them. They protect against faulty disks and copies, not against tampering. A folder without
`checksums.json` is accepted unchecked, because other programs write the same layout without it.
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
    """Return the checksum of a whole file, read piece by piece; `tick` is called after each piece.

    Raises OSError, also if the file has more than `limit` bytes (None: any size).
    """
    digest = xxhash.xxh3_64()
    piece = memoryview(bytearray(_PIECE_NBYTES))
    with open_file(path, limit=limit) as file:
        while nbytes := file.readinto(piece):
            digest.update(piece[:nbytes])
            tick()
    return digest.hexdigest()


def checksum_record(checksums: dict[str, str]) -> dict[str, Any]:
    """Return the content of `checksums.json` for `checksums`, {file name: checksum}."""
    return {"algorithm": _ALGORITHM, "files": checksums, "record": _of_table(checksums)}


def _of_table(table: dict[str, Any]) -> str:
    """Return a checksum of the table itself: a flipped bit in a file's name must not leave that file unchecked."""
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
    """Raise CheckpointError for the first of the files `names` of `folder` whose bytes differ from the bytes that were saved.

    Checks nothing if the folder has no `checksums.json`.
    tick: called after each piece that is read. others: files to check only if they were saved.
    limit: the most bytes that a file may have; None: the caller knows the files' sizes, and reading takes as long as they need.
    """
    record = folder / CHECKSUMS
    if not record.exists():
        return
    table = read_json(record)
    if not isinstance(table, dict) or not isinstance(table.get("files"), dict):
        raise CheckpointError(f"{record} is damaged: it has no table of checksums; use another checkpoint or copy it again")
    if table.get("algorithm") != _ALGORITHM:
        raise CheckpointError(f"{record} has checksums of kind {shown(table.get('algorithm'))}; expected {_ALGORITHM!r}; "
                              "update asynctile, or delete that file to load unchecked")
    whole = _of_table(table["files"])
    if table.get("record", whole) != whole:  # older files have no "record"
        raise CheckpointError(f"{record} is damaged: it differs from what was saved; use another checkpoint, copy it again, or "
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
                f"{folder / name} is damaged: its checksum is {found}, and was {shown(expected)} when it was saved; use "
                f"another checkpoint or copy it again (if you changed the file on purpose, delete {CHECKSUMS} beside it)"
            )
