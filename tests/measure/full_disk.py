"""A disk without room for the file of a trace."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest

from asynctile.measure import trace_file


def fill_disk(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """From now on refuse, as a full disk does, every write of a trace that goes beyond `room` bytes of its file."""

    def pwrite(descriptor: int, content: bytes, offset: int) -> int:
        if offset + len(content) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(descriptor, content, offset)

    monkeypatch.setattr(trace_file, "os", SimpleNamespace(**{**vars(os), "pwrite": pwrite}))
