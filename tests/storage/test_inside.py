"""In a folder that is held open nothing is written or removed through a link, and errors name the whole path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from asynctile.storage.errors import CheckpointError
from asynctile.storage.inside import Folder


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """Another user's folder, to which links lead."""
    far = tmp_path / "far"
    (far / "sub").mkdir(parents=True)
    (far / "file").write_text("precious")
    return far


@pytest.fixture
def near(tmp_path: Path, far: Path) -> Path:
    near = tmp_path / "near"
    near.mkdir()
    for name in ("file", "sub", "missing"):
        (near / name).symlink_to(far / name)
    return near


def everything(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() if path.is_file() else "" for path in sorted(folder.rglob("*"))}


def write_file(folder: Folder, name: str) -> None:
    folder.write(name, b"mine")


@pytest.mark.parametrize("act", [Folder.append_file, Folder.new_file, Folder.inside, Folder.remove_tree, Folder.make])
@pytest.mark.parametrize("name", ["file", "sub", "missing"])
def test_a_link_is_refused_by_name(near: Path, far: Path, name: str, act: Callable[[Folder, str], object]) -> None:
    before = everything(far)
    with Folder.open(near) as folder, pytest.raises(CheckpointError, match=rf"near/{name} is a link"):
        act(folder, name)
    assert everything(far) == before and (near / name).is_symlink()


@pytest.mark.parametrize("act", [write_file, Folder.remove])
@pytest.mark.parametrize("name", ["file", "sub", "missing"])
def test_a_link_is_replaced_or_removed_and_not_its_target(
    near: Path, far: Path, name: str, act: Callable[[Folder, str], object]
) -> None:
    before = everything(far)
    with Folder.open(near) as folder:
        act(folder, name)
        assert folder.links(folder.names()) == [other for other in folder.names() if other != name]
    assert everything(far) == before


def test_removing_a_tree_follows_no_links(near: Path, far: Path) -> None:
    before = everything(far)
    with Folder.open(near.parent) as folder:
        folder.remove_tree("near")
    assert not near.exists() and everything(far) == before


def test_the_opened_path_may_be_a_link(near: Path, far: Path) -> None:
    with Folder.open(near / "sub") as folder:
        folder.write("new", b"mine")
    assert (far / "sub" / "new").read_text() == "mine"


def test_a_moved_folder_stays_the_same(tmp_path: Path, far: Path) -> None:
    """A file or link that takes its name afterwards is not touched."""
    (tmp_path / "a").mkdir()
    with Folder.open(tmp_path / "a") as folder:
        assert folder.is_in_place()
        (tmp_path / "a").rename(tmp_path / "b")
        assert not folder.is_in_place()
        (tmp_path / "a").symlink_to(far)
        assert not folder.is_in_place()
        folder.write("file", b"mine")
        with folder.inside("new", make=True) as inner:
            inner.write("x", b"")
    assert (far / "file").read_text() == "precious"
    assert sorted(path.name for path in (tmp_path / "b").rglob("*")) == ["file", "new", "x"]


@pytest.mark.parametrize("act", [Folder.append_file, Folder.new_file, Folder.inside, Folder.remove_tree, Folder.make])
def test_errors_name_the_path(tmp_path: Path, act: Callable[[Folder, str], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with Folder.open(tmp_path) as folder, pytest.raises((OSError, CheckpointError)) as caught:
        act(folder, "pipe")
    assert str(tmp_path / "pipe") in str(caught.value)


@pytest.mark.parametrize("fails", ["fsync", "replace", "unlink"])
def test_a_full_disk_is_reported_where_a_link_may_be_replaced(
    near: Path, far: Path, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    before = everything(far)
    act = Folder.remove if fails == "unlink" else write_file
    with Folder.open(near) as folder, monkeypatch.context() as broken:
        broken.setattr(os, fails, full)
        with pytest.raises(OSError, match=rf"No space left on device: '{near}/file'$"):
            act(folder, "file")
    assert everything(far) == before and (near / "file").is_symlink()


def test_a_failed_write_leaves_the_older_file_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with Folder.open(tmp_path) as folder:
        folder.write("a", b"old")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space") as caught:
            folder.write("a", b"new")
        assert caught.value.filename == str(tmp_path / "a")
        assert folder.names() == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"
