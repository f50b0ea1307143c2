"""Something else in the place of a file or a folder: nothing, the other of the two, a link, a pipe, a device, no rights."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from asynctile.cli.stress.inputs.site import Site

__all__ = ["IMPOSTOR", "KEPT_FROM"]


def removed(site: Site) -> None:
    site.clear()


def swapped(site: Site) -> None:
    """A folder for a file, a file for a folder."""
    was_folder = site.path.is_dir()
    site.clear()
    if was_folder:
        site.path.write_bytes(b"a file\n")
    else:
        site.path.mkdir()
        if site.chance.random() < 0.5:
            (site.path / "inside").write_bytes(b"x")


def linked_out(site: Site) -> None:
    """To the same, whole, outside: reading goes well, and writing must not reach it."""
    site.clear()
    site.path.symlink_to(site.twin)


def shared(site: Site) -> None:
    """A hard link to the same outside, as a copy by `cp -l` has it: what is written in place is written there too."""
    site.clear()
    os.link(site.twin, site.path)


def linked_to_another(site: Site) -> None:
    """To something else outside: a text, a folder, a name that is not there yet, a pipe."""
    site.clear()
    site.path.symlink_to(site.outside / site.chance.choice(("secret.txt", "folder", "planted", "pipe")))


def linked_in_circles(site: Site) -> None:
    """To itself, or a folder that holds itself."""
    if site.path.is_dir() and site.chance.random() < 0.7:
        inside = site.path / site.chance.choice(("again", "step-000009", "tokens", "a.txt"))
        inside.symlink_to(site.chance.choice((site.path, site.path.parent, inside)))
        return
    site.clear()
    site.path.symlink_to(site.path)


def pipe(site: Site) -> None:
    """Nobody writes to it: opening it waits for ever."""
    site.clear()
    os.mkfifo(site.path)


def listener(site: Site) -> None:
    """A socket. Bound through a descriptor: the name of one is limited to 108 bytes."""
    site.clear()
    folder = os.open(site.path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{folder}/{site.path.name}")
    finally:
        os.close(folder)


def zeros(site: Site) -> None:
    """/dev/zero: never ends."""
    site.clear()
    site.path.symlink_to("/dev/zero")


def nothing(site: Site) -> None:
    """/dev/null: ends at once; or /dev/full, which also takes nothing."""
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
#: Those that mean something only to a process without the rights of root.
KEPT_FROM = frozenset({"unreadable", "unwritable"})
