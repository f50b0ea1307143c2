"""Unexpected names in a folder: one more checkpoint, leftovers that link outside, names that are not text, many entries."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from asynctile.cli.stress.inputs.site import Site

__all__ = ["ENTRIES"]

_NAMES = (b"\xff\xfe.txt", b"\x1b[2J.txt", b"two\nlines.txt", b"x" * 250, b"\xed\xa0\x80.json", b"-rf", b" ", b"\x7f",
          b"step-\xff", b"step-000005", b"step-999999", b"step-99999999999999999999999999", b"step-000000",
          b"model.safetensors", "step-٠٠٠٠٠٩".encode(), b"model.safetensors.index.json")  # fmt: skip
_MANY, _DEEP = 3_000, 300


def odd_names(site: Site) -> None:
    """Add one entry: a file, a folder, a link or a pipe."""
    name = os.fsencode(site.path) + b"/" + site.chance.choice(_NAMES)
    _put(Path(os.fsdecode(name)), site)


def litter(site: Site) -> None:
    """Add an entry with the name of litter that a kill leaves beside a replaced folder or a written file; it may be a link."""
    inside = [entry.name for entry in site.path.iterdir()] or ["step-000001"]
    name = f".{site.chance.choice((*inside, 'step-000006', 'step-000004'))}.{site.chance.getrandbits(32):08x}"
    _put(site.path / f"{name}.{site.chance.choice(('new', 'old', 'part'))}", site)


def very_many(site: Site) -> None:
    """Add thousands of entries, as links, which cost least."""
    prefix = site.chance.choice(("step-", "x", ".step-000001."))
    for i in range(_MANY):
        (site.path / f"{prefix}{i:08}{'.new' if prefix[0] == '.' else ''}").symlink_to("/dev/null")


def deep(site: Site) -> None:
    """Nest folders deeper than a path may be long."""
    folder = os.open(site.path, os.O_RDONLY)
    for _ in range(_DEEP):
        os.mkdir("d" * 20, dir_fd=folder)
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)


ENTRIES: dict[str, Callable[[Site], None]] = {
    "odd names": odd_names, "litter": litter, "3,000 entries": very_many, "300 folders deep": deep,
}  # fmt: skip


def _put(path: Path, site: Site) -> None:
    if os.path.lexists(path):
        return
    kind = site.chance.choice(("file", "folder", "pipe", "out", "out", "nowhere"))
    if kind == "file":
        path.write_bytes(b"x")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "out":
        path.symlink_to(site.outside / site.chance.choice(("folder", "run/checkpoints/step-000004", "secret.txt")))
    else:
        path.symlink_to(site.outside / "planted")
