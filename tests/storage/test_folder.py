"""Folders and small files appear whole or not at all."""

from __future__ import annotations

import math
import os

import pytest

from asynctile.storage.errors import CheckpointError
from asynctile.storage.folder import read_json, replace_folder, write_json
from asynctile.storage.inside import Folder


def names(folder):
    return sorted(os.listdir(folder))


def test_a_new_folder_appears_with_its_parents(tmp_path):
    final = tmp_path / "run" / "checkpoint"
    with replace_folder(final) as fresh:
        (fresh / "sub").mkdir()
        (fresh / "sub" / "a").write_text("1")
        assert not final.exists()
        assert fresh.parent == final.parent
    assert (final / "sub" / "a").read_text() == "1"
    assert names(final.parent) == ["checkpoint"]


def test_an_old_folder_is_replaced_as_a_whole(tmp_path):
    final = tmp_path / "checkpoint"
    final.mkdir()
    (final / "old").write_text("old")
    with replace_folder(final) as fresh:
        (fresh / "new").write_text("new")
        assert names(final) == ["old"]
    assert names(final) == ["new"]
    assert names(tmp_path) == ["checkpoint"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_folder_and_nothing_else(tmp_path, error):
    final = tmp_path / "checkpoint"
    final.mkdir()
    (final / "old").write_text("old")
    with pytest.raises(error), replace_folder(final) as fresh:  # noqa: PT012
        (fresh / "new").write_text("new")
        raise error
    assert names(tmp_path) == ["checkpoint"]
    assert (final / "old").read_text() == "old"


def test_a_failed_rename_puts_the_old_folder_back(tmp_path, monkeypatch):
    final = tmp_path / "checkpoint"
    final.mkdir()
    (final / "old").write_text("old")
    rename = os.rename

    def fail(source, target, **folders):
        if str(source).endswith(".new"):
            raise OSError(5, "Input/output error")
        rename(source, target, **folders)

    monkeypatch.setattr(Folder, "exchange", lambda *_: False)
    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="Input/output"), replace_folder(final):
        pass
    assert names(tmp_path) == ["checkpoint"]
    assert names(final) == ["old"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file"), replace_folder(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_text() == "x"


def test_the_folder_has_the_usual_permissions(tmp_path):
    (tmp_path / "plain").mkdir()
    with replace_folder(tmp_path / "made"):
        pass
    assert (tmp_path / "made").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_json_reads_back_bit_for_bit(tmp_path):
    obj = {"lr": 0.1 + 0.2, "tiny": 5e-324, "n": 2**70, "text": "žluť", "none": None, "list": [1, 2.5]}
    write_json(tmp_path / "a.json", obj)
    assert read_json(tmp_path / "a.json") == obj
    write_json(tmp_path / "a.json", {"nan": math.nan})
    assert math.isnan(read_json(tmp_path / "a.json", finite=False)["nan"])
    with pytest.raises(CheckpointError, match=r"a\.json is damaged: .*the number NaN, expected a finite one"):
        read_json(tmp_path / "a.json")
    assert names(tmp_path) == ["a.json"]


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", [1])
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})

    def fail(*_, **folders):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_json(tmp_path / "a.json", [2])
    assert names(tmp_path) == ["a.json"]
    assert read_json(tmp_path / "a.json") == [1]


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff\xfe\x00", b"{} x"])
def test_damaged_json_names_the_file(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.json is damaged"):
        read_json(path)


@pytest.mark.timeout(10)
def test_a_special_or_too_large_file_is_refused_by_name(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(CheckpointError, match=r"cannot read .*pipe\.json: it is a pipe, expected a regular file"):
        read_json(tmp_path / "pipe.json")
    (tmp_path / "long.json").write_bytes(b"")
    os.truncate(tmp_path / "long.json", 1 << 40)
    with pytest.raises(CheckpointError, match=r"cannot read .*long\.json: it has 1.00 TiB, expected at most 4.00 MiB"):
        read_json(tmp_path / "long.json")


def test_missing_json_names_the_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot read .*a\.json: No such file"):
        read_json(tmp_path / "a.json")
