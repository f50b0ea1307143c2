"""Folders in the user's cache: those that others could write are not used, and old ones are removed."""

import os
import re
import threading
import time

import pytest

from asynctile.storage.private import UNUSED_S, alone, drop_unused, private_folder, user_cache


def mode(path):
    return path.stat().st_mode & 0o7777


def test_the_cache_is_where_xdg_says_or_at_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for said, found in ((str(tmp_path / "x"), tmp_path / "x"), ("", tmp_path / ".cache"), ("here", tmp_path / ".cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", said)
        assert user_cache() == found
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache() == tmp_path / ".cache"
    monkeypatch.setenv("HOME", "nowhere")
    assert user_cache() is None


def test_a_new_folder_belongs_to_its_owner_alone_under_any_umask(tmp_path):
    before = os.umask(0)
    try:
        found = private_folder(tmp_path / "cache", "asynctile", "kernels")
    finally:
        os.umask(before)
    assert found == tmp_path / "cache/asynctile/kernels"
    assert [mode(path) for path in (found, found.parent, found.parent.parent)] == [0o700] * 3


def test_an_existing_folder_is_found_and_marked_as_used(tmp_path):
    found = private_folder(tmp_path, "one")
    (found / "kept").touch()
    os.utime(found, (0, 0))
    assert private_folder(tmp_path, "one") == found
    assert found.stat().st_mtime > time.time() - 60 and (found / "kept").exists()


@pytest.mark.parametrize("bits", [0o770, 0o702, 0o1777], ids=oct)
def test_a_folder_that_others_can_write_is_refused(tmp_path, bits):
    for names in (("asynctile",), ("asynctile", "kernels")):
        found = private_folder(tmp_path, *names)
        found.chmod(bits)
        assert private_folder(tmp_path, "asynctile", "kernels") is None
        found.chmod(0o700)


def test_a_folder_that_others_could_replace_is_refused(tmp_path):
    above = tmp_path / "above"
    (above / "cache").mkdir(parents=True)
    for folder in (above, above / "cache"):
        folder.chmod(0o777)
        assert private_folder(above / "cache", "asynctile") is None
        folder.chmod(0o1777)  # only the owner of a name can rename it there, as in /tmp
        assert private_folder(above / "cache", "asynctile") is not None
        folder.chmod(0o700)


def test_a_folder_of_another_owner_is_refused(tmp_path, monkeypatch):
    assert private_folder(tmp_path, "asynctile") is not None
    monkeypatch.setattr("asynctile.storage.private.os.geteuid", lambda: os.getuid() + 1)
    assert private_folder(tmp_path, "asynctile") is None


def test_a_link_in_place_of_the_folder_is_refused_and_one_above_is_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "asynctile").symlink_to("elsewhere")
    assert private_folder(tmp_path, "asynctile") is None
    assert private_folder(tmp_path / "asynctile", "kernels") == tmp_path / "elsewhere/kernels"


def test_there_is_no_folder_where_none_can_be_made(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "round").symlink_to("round")
    for parent in ("file", "file/below", "missing/below", "round"):
        assert private_folder(tmp_path / parent, "asynctile") is None
    assert not (tmp_path / "missing").exists()


def test_only_folders_unused_for_long_are_dropped(tmp_path):
    names = ("kernels-0", "kernels-1", "others", "kernels-2")
    for name in names[:3]:
        (tmp_path / name / "inner").mkdir(parents=True)
    (tmp_path / "kernels-2").symlink_to("others")
    (tmp_path / "kernels-3").touch()
    long_ago = time.time() - UNUSED_S - 60
    for name in ("kernels-0", "others", "kernels-2", "kernels-3"):
        os.utime(tmp_path / name, (long_ago, long_ago), follow_symlinks=False)
    drop_unused(tmp_path, re.compile(r"kernels-\d"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels-1", "kernels-2", "kernels-3", "others"]
    assert (tmp_path / "others/inner").is_dir()
    drop_unused(tmp_path / "missing", re.compile(""))


def test_only_one_process_at_a_time_is_inside(tmp_path):
    inside = threading.Event()

    def other():
        with alone(tmp_path):
            inside.set()

    thread = threading.Thread(target=other)
    with alone(tmp_path):
        thread.start()
        assert not inside.wait(0.1)
    thread.join()
    assert inside.is_set()
    with pytest.raises(OSError, match="of the block"), alone(tmp_path):
        raise OSError("of the block")


def test_without_a_lock_all_processes_are_inside(tmp_path):
    with alone(tmp_path / "missing"), alone(tmp_path / "missing"):
        pass
