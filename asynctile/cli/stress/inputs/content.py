"""Damage to the bytes of a file, whatever they mean."""

from __future__ import annotations

import os
from collections.abc import Callable

from asynctile.cli.stress.inputs.document import ODD
from asynctile.cli.stress.inputs.site import Site

__all__ = ["CONTENT"]

#: A size above that of any disk here; the file takes no space.
_STRETCHED_NBYTES = 1 << 40
_INSERTED = (b"\0", b"\xff", b'"', b"\\", b"[" * 200, b'{"a":' * 200, *(text.encode() for text in ODD))
#: The longest part that is repeated, so that files stay small.
_PART_NBYTES = 1 << 16


def truncated(site: Site) -> None:
    """Cut the file, often to nothing, as a crash leaves a file that was never synced."""
    size = site.path.stat().st_size
    os.truncate(site.path, site.chance.choice((0, site.chance.randrange(size), size - 1)) if size else 0)


def flipped(site: Site) -> None:
    """Flip one bit."""
    content = bytearray(site.path.read_bytes())
    if content:
        content[site.chance.randrange(len(content))] ^= 1 << site.chance.randrange(8)
    site.path.write_bytes(content)


def noise(site: Site) -> None:
    """Put random bytes in place of the file or of a part of it."""
    content = site.path.read_bytes()
    part = site.chance.randbytes(site.chance.choice((1, 8, 100, 5000)))
    begin = site.chance.randrange(len(content) + 1)
    site.path.write_bytes(site.chance.choice((part, content[:begin] + part + content[begin + len(part):], content + part)))


def inserted(site: Site) -> None:
    """Insert a few bytes that mean something in JSON, or that are invalid UTF-8."""
    content = site.path.read_bytes()
    at = site.chance.randrange(len(content) + 1)
    site.path.write_bytes(content[:at] + site.chance.choice(_INSERTED) + content[at:])


def left_out(site: Site) -> None:
    """Remove a part."""
    before, _, after = _cut(site)
    site.path.write_bytes(before + after)


def repeated(site: Site) -> None:
    """Repeat a part several times."""
    before, part, after = _cut(site)
    site.path.write_bytes(before + part + part[:_PART_NBYTES] * site.chance.choice((1, 2, 50)) + after)


def stretched(site: Site) -> None:
    """Extend the file with zeros to one tebibyte."""
    os.truncate(site.path, _STRETCHED_NBYTES)


CONTENT: dict[str, Callable[[Site], None]] = {
    "truncated": truncated, "bit flipped": flipped, "noise": noise, "inserted": inserted, "left out": left_out,
    "repeated": repeated, "stretched to 1 TiB": stretched,
}  # fmt: skip


def _cut(site: Site) -> tuple[bytes, bytes, bytes]:
    """Return the content of a file in three parts, cut at two random places."""
    content = site.path.read_bytes()
    begin, end = sorted(site.chance.randrange(len(content) + 1) for _ in range(2))
    return content[:begin], content[begin:end], content[end:]
