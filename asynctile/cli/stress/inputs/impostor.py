"""Something else in place of a file or folder: nothing, the other kind, a link, a pipe, a device, or no permissions."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from asynctile.cli.stress.inputs.site import Site

__all__ = ["IMPOSTOR", "KEPT_FROM"]


def removed(site: Site) -> None:
    site.clear()


def swapped(site: Site) -> None:
    """Replace a file by a folder, or a folder by a file."""
    was_folder = site.path.is_dir()
    site.clear()
    if was_folder:
        site.path.write_bytes(b"a file\n")
    else:
        site.path.mkdir()
        if site.chance.random() < 0.5:
            (site.path / "inside").write_bytes(b"x")


def linked_out(site: Site) -> None:
    """Replace the file by a link to its undamaged twin outside: reading works, and writing must not reach the twin."""
    site.clear()
    site.path.symlink_to(site.twin)


def shared(site: Site) -> None:
    """Replace the file by a hard link to its twin, as `cp -l` makes it: writing in place would change the twin too."""
    site.clear()
    os.link(site.twin, site.path)


def linked_to_another(site: Site) -> None:
    """Replace the file by a link to something else outside: a text, a folder, a missing name, a pipe."""
    site.clear()
    site.path.symlink_to(site.outside / site.chance.choice(("secret.txt", "folder", "planted", "pipe")))


def linked_in_circles(site: Site) -> None:
    """Make a link to itself, or a folder that contains itself."""
    if site.path.is_dir() and site.chance.random() < 0.7:
        inside = site.path / site.chance.choice(("again", "step-000009", "tokens", "a.txt"))
        inside.symlink_to(site.chance.choice((site.path, site.path.parent, inside)))
        return
    site.clear()
    site.path.symlink_to(site.path)


def pipe(site: Site) -> None:
    """Replace the file by a pipe without a writer: opening it blocks forever."""
    site.clear()
    os.mkfifo(site.path)


def listener(site: Site) -> None:
    """Replace the file by a socket. It is bound through a descriptor, because its name is limited to 108 bytes."""
    site.clear()
    folder = os.open(site.path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{folder}/{site.path.name}")
    finally:
        os.close(folder)


def zeros(site: Site) -> None:
    """Replace the file by a link to /dev/zero, which never ends."""
    site.clear()
    site.path.symlink_to("/dev/zero")


def nothing(site: Site) -> None:
    """Replace the file by a link to /dev/null, which ends at once, or to /dev/full, which also refuses writes."""
    site.clear()
    site.path.symlink_to(site.chance.choice(("/dev/null", "/dev/full")))


def unreadable(site: Site) -> None:
    site.path.chmod(0)


def unwritable(site: Site) -> None:
    site.path.chmod(0o555 if site.path.is_dir() else 0o444)


IMPOSTOR: dict[str, Callable[[Site], None]] = {
    "removed": removed, "folder or file": swapped, "linked out": linked_out, "hard link out": shared,
    "linked elsewhere": linked_to_another, "linked in a circle": linked_in_circles, "pipe": pipe, "socket": listener,
    "/dev/zero": zeros, "/dev/null": nothing, "unreadable": unreadable, "unwritable": unwritable,
}  # fmt: skip
#: Impostors that only affect a process without root's rights.
KEPT_FROM = frozenset({"unreadable", "unwritable"})
