"""The file of a trace: valid JSON at every moment, also where the disk does not take it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from asynctile.measure import trace_file
from asynctile.measure.trace_file import TraceFile


def events(*numbers: int) -> list[str]:
    return [json.dumps({"n": number}) for number in numbers]


def numbers(path: Path) -> list[int]:
    return [event["n"] for event in json.loads(path.read_text())]


def test_the_file_is_whole_whenever_somebody_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("what stood there before, and is longer than what comes")
    file = TraceFile(str(path))
    assert numbers(path) == []
    for count in range(1, 4):
        file.append(events(*range(count)))
        assert numbers(path) == [number for upto in range(1, count + 1) for number in range(upto)]
    file.append([])
    file.close()
    file.close()
    assert numbers(path) == [0, 0, 1, 0, 1, 2] and file.nbytes == path.stat().st_size


@pytest.mark.parametrize("written", [0, 1, 5])
def test_a_full_disk_leaves_what_was_written_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    path, pwrite = tmp_path / "t.json", os.pwrite
    file = TraceFile(str(path))
    file.append(events(1, 2))
    room, size = [written], path.stat().st_size  # allocated space may be rewritten

    def full(descriptor: int, text: bytes, offset: int) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = room.pop()
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, text[:taken], offset)

    with monkeypatch.context() as patch:
        patch.setattr(trace_file.os, "pwrite", lambda *args: full(*args) if args[2] + len(args[1]) > size else pwrite(*args))
        with pytest.raises(OSError, match="No space left") as caught:
            file.append(events(3))
    assert caught.value.filename == str(path) and numbers(path) == [1, 2]
    file.append(events(4))
    assert numbers(path) == [1, 2, 4]


def test_a_removed_file_is_noticed_at_once(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "t.json"))
    (tmp_path / "t.json").unlink()
    with pytest.raises(FileNotFoundError, match="was removed while it was written"):
        file.append(events(1))


def test_a_special_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(OSError, match="is not a regular file"):
            TraceFile(str(place))
    with pytest.raises(IsADirectoryError):
        TraceFile(str(tmp_path))


def test_a_file_without_a_name_is_copied_as_often_as_wanted_and_never_onto_itself(tmp_path: Path) -> None:
    file = TraceFile(None)
    file.append(events(1))
    file.copy_to(str(tmp_path / "a"))
    file.append(events(2))
    file.copy_to(str(tmp_path / "b"))
    assert (numbers(tmp_path / "a"), numbers(tmp_path / "b")) == ([1], [1, 2])
    named = TraceFile(str(tmp_path / "c"))
    named.append(events(3))
    with pytest.raises(ValueError, match="is the file that this trace is written to"):
        named.copy_to(str(tmp_path / "c"))
    assert numbers(tmp_path / "c") == [3]
