"""Damage to the bytes of a file, whatever they mean."""

from __future__ import annotations

import os
from collections.abc import Callable

from asynctile.cli.stress.inputs.site import Site

__all__ = ["CONTENT"]

#: More than any disk here has; the file takes no room.
_STRETCHED_NBYTES = 1 << 40


def truncated(site: Site) -> None:
    """Often to nothing: what a crash leaves of a file that nobody synced."""
    size = site.path.stat().st_size
    os.truncate(site.path, site.chance.choice((0, site.chance.randrange(size), size - 1)) if size else 0)


def flipped(site: Site) -> None:
    """One bit."""
    content = bytearray(site.path.read_bytes())
    if content:
        content[site.chance.randrange(len(content))] ^= 1 << site.chance.randrange(8)
    site.path.write_bytes(content)


def noise(site: Site) -> None:
    """Random bytes in place of the whole or of a part."""
    content = site.path.read_bytes()
    part = site.chance.randbytes(site.chance.choice((1, 8, 100, 5000)))
    begin = site.chance.randrange(len(content) + 1)
    site.path.write_bytes(site.chance.choice((part, content[:begin] + part + content[begin + len(part):], content + part)))


def stretched(site: Site) -> None:
    """To a tebibyte of zeros at the end."""
    os.truncate(site.path, _STRETCHED_NBYTES)


CONTENT: dict[str, Callable[[Site], None]] = {
    "truncated": truncated, "bit flipped": flipped, "noise": noise, "stretched to 1 TiB": stretched,
}  # fmt: skip
