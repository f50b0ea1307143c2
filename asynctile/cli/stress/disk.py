"""A small disk for scenario `nodes`: a file system in RAM that can be full, as a disk that all machines share.

Covers `SmallDisk`. Only a process that has mounted it and its forks see it, and it is gone with them. So nobody needs rights.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["SmallDisk"]

#: from <linux/sched.h>: namespaces for the mounts and for the rights of this process
_NEW_MOUNTS, _NEW_RIGHTS = 0x00020000, 0x10000000
#: Bytes of the disk: a hundred times those of a run of stress. A disk that fills takes milliseconds.
_NBYTES = 16 << 20


class SmallDisk:
    """A disk mounted at a new `folder`. OSError if the system does not let this process mount, or it has several threads."""

    def __init__(self, folder: Path) -> None:
        user, group = os.getuid(), os.getgid()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_NEW_MOUNTS | _NEW_RIGHTS):
            raise OSError(ctypes.get_errno(), "unshare failed")
        for name, words in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(words)
        folder.mkdir()
        if libc.mount(b"asynctile stress", os.fsencode(folder), b"tmpfs", 0, f"size={_NBYTES}".encode()):
            raise OSError(ctypes.get_errno(), "mount failed", str(folder))
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave no byte free."""
        with open(self._ballast, "wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))

    def empty(self) -> None:
        """Free what `fill` took."""
        self._ballast.unlink(missing_ok=True)
