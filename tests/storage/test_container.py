"""The spill file: nothing stays behind, one engine for each folder, a sentence for each unusable folder."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from asynctile.errors import TierError
from asynctile.storage.container import ALIGNMENT, ContainerFile, aligned_array


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def assert_round_trip(file: ContainerFile) -> None:
    out, back = aligned_array(4 * ALIGNMENT), aligned_array(4 * ALIGNMENT)
    out[:] = np.arange(out.size) % 251
    assert file.pwritev([out[:ALIGNMENT]], 2 * ALIGNMENT) == ALIGNMENT
    assert file.pwritev([out[ALIGNMENT:]], 3 * ALIGNMENT) == 3 * ALIGNMENT
    done = 0
    while done < back.nbytes:  # the plain calls move one view at a time
        done += file.preadv([back[done:]], 2 * ALIGNMENT + done)
    assert np.array_equal(out, back)
    assert file.preadv([back], 1 << 30) == 0


def fail_with(code: int):
    def call(*_args, **_kwargs):
        raise OSError(code, os.strerror(code))

    return call


def test_bytes_come_back_and_nothing_is_left_in_the_folder_or_open(tmp_path):
    before = descriptors()
    file = ContainerFile(tmp_path)
    assert file.path == str(tmp_path)
    assert_round_trip(file)
    assert not list(tmp_path.iterdir())
    file.close()
    file.close()
    assert not list(tmp_path.iterdir()) and descriptors() == before


def test_a_fresh_file_is_empty_after_its_probe_and_allocate_only_lengthens_it(tmp_path):
    file = ContainerFile(tmp_path)
    assert os.fstat(file.fileno()).st_size == 0
    for nbytes in (1 << 20, 1 << 16):
        file.allocate(nbytes)
        assert os.fstat(file.fileno()).st_size == file.nbytes == 1 << 20
    assert os.fstat(file.fileno()).st_blocks * 512 >= 1 << 20
    file.truncate(0)
    assert os.fstat(file.fileno()).st_size == file.nbytes == 0
    file.close()


def test_without_unnamed_files_the_file_gets_a_name_that_is_removed_at_once(tmp_path, monkeypatch):
    real = os.open

    def without_tmpfile(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", without_tmpfile)
    (tmp_path / ".asynctile.spill").write_text("left by a killed process")
    file = ContainerFile(tmp_path)
    assert_round_trip(file)
    assert not list(tmp_path.iterdir())
    file.close()


def test_a_file_system_that_refuses_direct_transfers_is_used_through_the_page_cache(tmp_path, monkeypatch):
    real = os.pwritev

    def refuse(fd, views, offset):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, views, offset)

    monkeypatch.setattr(os, "pwritev", refuse)
    file = ContainerFile(tmp_path)
    assert not file.direct
    assert_round_trip(file)
    file.close()


def test_a_second_engine_on_the_folder_is_refused_until_the_first_is_closed(tmp_path):
    first = ContainerFile(tmp_path)
    before = descriptors()
    with pytest.raises(TierError, match=r"is in use by another engine; .*a folder of its own") as caught:
        ContainerFile(tmp_path)
    assert "\n" not in str(caught.value) and descriptors() == before
    first.close()
    ContainerFile(tmp_path).close()


def test_a_killed_process_leaves_no_file_and_no_lock(tmp_path):
    code = (
        "import sys, time; from asynctile.storage.container import ContainerFile\n"
        f"file = ContainerFile({str(tmp_path)!r}); file.allocate(1 << 20); print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        with pytest.raises(TierError, match="another engine"):
            ContainerFile(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not list(tmp_path.iterdir())
    ContainerFile(tmp_path).close()


def test_a_missing_folder_a_file_and_an_unwritable_folder_are_named(tmp_path):
    before = descriptors()
    (tmp_path / "file").write_text("")
    for folder, sentence in (
        (tmp_path / "none", r"none does not exist; create it"),
        (tmp_path / "file", r"file is not a folder; name a folder"),
        ("/proc", r"cannot make a file in spill folder /proc: .* are free; name a writable folder"),
    ):
        with pytest.raises(TierError, match=sentence) as caught:
            ContainerFile(folder)
        assert "\n" not in str(caught.value)
    assert descriptors() == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_the_probe_is_refused_and_closed(code, tmp_path, monkeypatch):
    before = descriptors()
    monkeypatch.setattr(os, "pwritev", fail_with(code))
    with pytest.raises(TierError, match=os.strerror(code)):
        ContainerFile(tmp_path)
    assert descriptors() == before


def test_a_request_for_more_than_the_disk_has_is_refused_before_any_of_it_is_taken(tmp_path):
    file = ContainerFile(tmp_path)
    with pytest.raises(TierError, match=rf"needs 1024.00 TiB \({1 << 50} bytes\) more .* \(\d+ bytes\) are free.*spill_limit"):
        file.allocate(1 << 50)
    assert os.fstat(file.fileno()).st_blocks == 0
    file.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_failed_allocation_leaves_the_file_unchanged(code, tmp_path, monkeypatch):
    file = ContainerFile(tmp_path)
    file.allocate(ALIGNMENT)
    monkeypatch.setattr(os, "posix_fallocate", fail_with(code))
    with pytest.raises(TierError, match=rf"needs 4.00 KiB .*: {os.strerror(code)}; free some"):
        file.allocate(2 * ALIGNMENT)
    assert os.fstat(file.fileno()).st_size == file.nbytes == ALIGNMENT
    file.close()


def test_a_file_system_without_allocation_gets_a_longer_file(tmp_path, monkeypatch):
    file = ContainerFile(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", fail_with(errno.EOPNOTSUPP))
    file.allocate(1 << 20)
    assert os.fstat(file.fileno()).st_size == 1 << 20
    file.close()
