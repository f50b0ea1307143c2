"""A replaced folder is whole at every moment: after a kill at any point, recovery gives the old folder or the new one.

A kill is simulated by making every call that changes the disk fail from the n-th on, because a dead process does not clean up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asynctile.storage import beside
from asynctile.storage.beside import whole_folder, whole_names
from asynctile.storage.errors import CheckpointError
from asynctile.storage.folder import replace_folder
from asynctile.storage.inside import Folder

CHANGES = ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync")


def recover_folder(path: Path) -> None:
    with Folder.open(path.parent) as parent:
        beside.recover_folder(parent, path.name)


def recover_folders(path: Path) -> None:
    with Folder.open(path) as parent:
        beside.recover_folders(parent)


def remove_folder(path: Path) -> None:
    with Folder.open(path.parent) as parent:
        beside.remove_folder(parent, path.name)


class Killed(OSError):
    """The error of a call after the simulated death of the process."""


@contextmanager
def killed_at(call: int) -> Iterator[list[str]]:
    """Make every change of the disk fail from the `call`-th on; yield the list of the changes that were tried."""
    tried: list[str] = []
    with pytest.MonkeyPatch.context() as patch:

        def mortal(name: str, true: Callable[..., Any]) -> Callable[..., Any]:
            def change(*args: Any, **kwargs: Any) -> Any:
                tried.append(name)
                if len(tried) >= call:
                    raise Killed(5, f"dead before {name}")
                return true(*args, **kwargs)

            return change

        for name in CHANGES:
            patch.setattr(os, name, mortal(name, getattr(os, name)))
        patch.setattr(Folder, "exchange", mortal("exchange", Folder.exchange))
        yield tried


@pytest.fixture(params=[True, False], ids=["exchange", "two renames"])
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(Folder, "exchange", lambda *_: False)
    return bool(request.param)


def fill(folder: Path, text: str) -> None:
    for name in ("a", "b", "c"):
        (folder / name).write_text(text)


def content(folder: Path) -> set[str]:
    """Return the texts of a whole folder."""
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "c"]
    return {path.read_text() for path in folder.iterdir()}


def replaced(final: Path, text: str) -> None:
    with replace_folder(final) as fresh:
        fill(fresh, text)


def test_after_a_kill_anywhere_the_old_or_the_new_folder_is_there(tmp_path: Path, exchange: bool) -> None:
    final, seen, call, tried = tmp_path / "runs" / "c", [], 0, ["something"]
    while call <= len(tried):
        call += 1
        if final.exists():
            remove_folder(final)
        replaced(final, "old")
        with killed_at(call) as tried:
            try:
                replaced(final, "new")
            except Killed:
                pass
        recover_folder(final)
        assert [path.name for path in final.parent.iterdir()] == ["c"], f"killed at {tried[call - 1 : call]}"
        (text,) = content(final)
        seen.append(text)
    assert seen == sorted(seen, reverse=True), "once the new one was there, it stayed"
    assert set(seen) == {"old", "new"}
    assert ("exchange" in tried) is exchange or not exchange
    assert len(seen) > 8


def test_a_folder_is_there_at_every_moment_if_names_can_be_exchanged(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir(), (tmp_path / "other").mkdir()
    with Folder.open(tmp_path) as parent:
        if not parent.exchange("one", "other"):
            pytest.skip("this file system cannot")
    final, call, tried = tmp_path / "c", 0, ["something"]
    replaced(final, "old")
    while call <= len(tried):
        call += 1
        with killed_at(call) as tried:
            try:
                replaced(final, "new")
            except Killed:
                pass
        assert len(content(final)) == 1


def test_exchange_swaps_and_says_when_it_cannot(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        fill(tmp_path / name, name)
    with Folder.open(tmp_path) as parent:
        if parent.exchange("one", "other"):
            assert (content(tmp_path / "one"), content(tmp_path / "other")) == ({"other"}, {"one"})
        assert not parent.exchange("one", "missing")


def test_the_only_whole_copy_is_put_back(tmp_path: Path) -> None:
    for name, text in ((".c.0123abcd.old", "old"), (".c.0123abce.new", "half"), (".d.00000000.old", "d")):
        (tmp_path / name).mkdir()
        fill(tmp_path / name, text)
    (tmp_path / ".c.0123abce.new" / "b").unlink()
    recover_folder(tmp_path / "c")
    assert content(tmp_path / "c") == {"old"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".d.00000000.old", "c"]
    recover_folders(tmp_path)
    assert content(tmp_path / "d") == {"d"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "d"]


def test_the_newest_of_several_old_copies_is_put_back(tmp_path: Path) -> None:
    for age, name in enumerate((".c.00000001.old", ".c.00000003.old", ".c.00000002.old")):
        (tmp_path / name).mkdir()
        fill(tmp_path / name, name)
        os.utime(tmp_path / name, ns=(0, 10**9 * (9 - abs(age - 1))))
    recover_folder(tmp_path / "c")
    assert content(tmp_path / "c") == {".c.00000003.old"}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_other_files_stay(tmp_path: Path) -> None:
    names = [".c", ".c.new", ".c.01234567.tmp", ".c.0123456789.new", "c.01234567.old"]
    for name in names:
        (tmp_path / name).mkdir()
    recover_folder(tmp_path / "c")
    recover_folders(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_folder_being_filled_by_a_living_process_is_no_litter(tmp_path: Path) -> None:
    final = tmp_path / "c"
    with replace_folder(final) as one:
        fill(one, "one")
        recover_folder(final)
        replaced(final, "two")
        assert content(one) == {"one"}
        assert content(final) == {"two"}
    assert content(final) == {"one"}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_killed_removal_leaves_no_half_folder(tmp_path: Path) -> None:
    call, tried = 0, ["something"]
    while call <= len(tried):
        call += 1
        replaced(tmp_path / "c", "old")
        with killed_at(call) as tried:
            try:
                remove_folder(tmp_path / "c")
            except Killed:
                pass
        assert not (tmp_path / "c").exists() or content(tmp_path / "c") == {"old"}
        recover_folders(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) in ([], ["c"])


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far")
    replaced(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "far") == {"new"}


def test_a_mere_reader_finds_the_whole_copy_and_changes_nothing(tmp_path: Path) -> None:
    for name, text in ((".c.0123abcd.old", "old"), (".c.0123abce.new", "half"), (".d.00000000.old", "d"), ("e", "e")):
        (tmp_path / name).mkdir()
        fill(tmp_path / name, text)
    before = sorted(tmp_path.rglob("*"))
    assert content(whole_folder(tmp_path / "c")) == {"old"}
    assert whole_folder(tmp_path / "e") == tmp_path / "e"
    assert whole_folder(tmp_path / "f") == tmp_path / "f"
    assert whole_folder(tmp_path / "nowhere" / "f") == tmp_path / "nowhere" / "f"
    (tmp_path / "link").symlink_to(tmp_path / "c")
    assert content(whole_folder(tmp_path / "link")) == {"old"}
    (tmp_path / "link").unlink()
    with Folder.open(tmp_path) as parent:
        assert whole_names(parent) == {"c", "d", "e"}
        assert sorted(tmp_path.rglob("*")) == before
        (tmp_path / "f").write_text("no folder")
        os.mkfifo(tmp_path / "g")
        assert whole_names(parent) == {"c", "d", "e"}


def test_a_link_is_neither_litter_nor_a_copy_nor_a_folder_to_remove(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    fill(tmp_path / "far", "precious")
    inside = tmp_path / "inside"
    inside.mkdir()
    for name in ("c", ".d.0123abcd.new", ".e.0123abcd.old"):
        (inside / name).symlink_to(tmp_path / "far")
    with pytest.raises(CheckpointError, match=r"inside/c is a link"):
        remove_folder(inside / "c")
    recover_folders(inside)
    assert sorted(path.name for path in inside.iterdir()) == [".d.0123abcd.new", ".e.0123abcd.old", "c"]
    assert content(tmp_path / "far") == {"precious"}


@pytest.mark.parametrize("name", ["../away", ".c.00000000.old", ".c.00000001.new", ".l.00000000.new", ".f.00000000.new", ""])
def test_only_a_folder_that_is_being_filled_is_filled_by_others(tmp_path: Path, name: str) -> None:
    for made in ("away", "at/.c.00000000.old", "at/.c.00000000.new"):
        (tmp_path / made).mkdir(parents=True)
    (tmp_path / "at/.l.00000000.new").symlink_to(tmp_path / "away")
    (tmp_path / "at/.f.00000000.new").touch()
    assert beside.fresh_folder(tmp_path / "at/c", ".c.00000000.new") == tmp_path / "at/.c.00000000.new"
    for final in ("at/c", "nowhere/c"):
        with pytest.raises(ValueError, match="has no folder"):
            beside.fresh_folder(tmp_path / final, name)
