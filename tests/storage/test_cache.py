"""A cache never fails and never follows a link; it is bounded, and evicts the least recently used files."""

import os
from pathlib import Path

import pytest

from asynctile.storage.cache import Cache


def cache_in(folder: Path, *, most: int = 3, most_nbytes: int = 100, largest_nbytes: int = 50) -> Cache:
    return Cache(folder, "kept", ".it", most=most, most_nbytes=most_nbytes, largest_nbytes=largest_nbytes)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "kept").iterdir())


def age(folder: Path, name: str, seconds: int) -> None:
    os.utime(folder / "kept" / name, (seconds, seconds))


def test_a_kept_file_is_read_by_another_cache_and_may_be_replaced(tmp_path):
    cache_in(tmp_path).keep("a", b"one")
    cache_in(tmp_path).keep("a", b"two")
    assert cache_in(tmp_path).read("a") == b"two"
    assert cache_in(tmp_path).read("b") is None
    assert names(tmp_path) == ["a.it"]


def test_the_least_recently_used_files_are_dropped(tmp_path):
    cache = cache_in(tmp_path)
    for place, key in enumerate("abc"):
        cache.keep(key, b"x")
        age(tmp_path, f"{key}.it", 1000 + place)
    assert cache.read("a") == b"x"  # from here on the most recently used
    cache.keep("d", b"x")
    assert names(tmp_path) == ["a.it", "c.it", "d.it"]


def test_bytes_are_bounded(tmp_path):
    cache = cache_in(tmp_path)
    cache.keep("large", b"x" * 51)
    assert not (tmp_path / "kept").exists()
    for place, key in enumerate("abc"):
        cache.keep(key, b"x" * 40)
        if key != "c":
            age(tmp_path, f"{key}.it", 1000 + place)
    assert names(tmp_path) == ["b.it", "c.it"]
    (tmp_path / "kept" / "b.it").write_bytes(b"x" * 51)
    assert cache.read("b") is None


def test_leftovers_of_a_kill_are_removed_and_foreign_files_stay(tmp_path):
    cache = cache_in(tmp_path, most=1)
    cache.keep("a", b"x")
    for name in (".b.it.0a1b2c3d.part", "letter.txt", "it"):
        (tmp_path / "kept" / name).write_bytes(b"x")
        age(tmp_path, name, 1000)
    (tmp_path / "kept" / "folder.it").mkdir()
    cache.keep("a", b"y")
    assert names(tmp_path) == ["a.it", "folder.it", "it", "letter.txt"]


def test_a_folder_that_cannot_be_written_keeps_nothing_and_is_read(tmp_path, monkeypatch):
    cache_in(tmp_path).keep("a", b"x")

    def refuse(*_, **__):
        raise PermissionError(13, "read-only")

    for name in ("utime", "mkdir", "replace"):
        monkeypatch.setattr(os, name, refuse)
    cache_in(tmp_path).keep("b", b"x")
    assert cache_in(tmp_path).read("a") == b"x"
    assert names(tmp_path) == ["a.it"]


@pytest.mark.parametrize("parent", ["nowhere", "file"])
def test_nothing_is_kept_where_no_folder_can_be_made(tmp_path, parent):
    (tmp_path / "file").write_bytes(b"")
    cache = cache_in(tmp_path / parent)
    cache.keep("a", b"x")
    assert cache.read("a") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_nothing_is_written_through_a_link(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "kept").symlink_to(other)
    cache_in(tmp_path).keep("a", b"x")
    assert list(other.iterdir()) == []
    (tmp_path / "kept").unlink()
    (tmp_path / "kept").mkdir()
    (other / "b").write_bytes(b"mine")
    (tmp_path / "kept" / "b.it").symlink_to(other / "b")
    cache_in(tmp_path).keep("b", b"x")
    assert (other / "b").read_bytes() == b"mine"
    assert not (tmp_path / "kept" / "b.it").is_symlink()


def test_a_pipe_is_not_waited_for(tmp_path):
    (tmp_path / "kept").mkdir()
    os.mkfifo(tmp_path / "kept" / "a.it")
    assert cache_in(tmp_path).read("a") is None
