"""A changed byte is noticed and its file is named; a folder without checksums is accepted unchecked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash

from asynctile.storage.checksums import CHECKSUMS, check_files, checksum, checksum_record
from asynctile.storage.errors import CheckpointError
from asynctile.storage.folder import write_json

NAMES = ("a", "b")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).write_bytes(name.encode() * 100)
    write_json(tmp_path / CHECKSUMS, checksum_record({name: checksum(tmp_path / name) for name in NAMES}))
    return tmp_path


@pytest.mark.parametrize("nbytes", [0, 1, 4 << 20, (8 << 20) + 5])
def test_a_checksum_covers_the_whole_file(tmp_path: Path, nbytes: int) -> None:
    content = bytes(range(251)) * (nbytes // 251 + 1)
    (tmp_path / "file").write_bytes(content[:nbytes])
    assert checksum(tmp_path / "file") == xxhash.xxh3_64_hexdigest(content[:nbytes])


def test_whole_files_pass(folder: Path) -> None:
    check_files(folder, NAMES)
    (folder / CHECKSUMS).unlink()
    (folder / "a").write_text("changed")
    check_files(folder, NAMES)


def test_a_file_missing_from_the_record_is_damage_of_the_record(folder: Path) -> None:
    (folder / "c").write_text("later")
    with pytest.raises(CheckpointError, match=r"checksums.json is damaged: it has no checksum of c"):
        check_files(folder, (*NAMES, "c"))


@pytest.mark.parametrize("at", [0, 57, 99])
def test_a_flipped_bit_names_its_file(folder: Path, at: int) -> None:
    content = bytearray((folder / "b").read_bytes())
    content[at] ^= 4
    (folder / "b").write_bytes(content)
    check_files(folder, ["a"])
    with pytest.raises(CheckpointError, match=rf"{folder / 'b'} is damaged.*delete checksums\.json"):
        check_files(folder, NAMES)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "a").unlink()
    with pytest.raises(CheckpointError, match=f"cannot read {folder / 'a'}: No such file"):
        check_files(folder, NAMES)


def test_no_byte_is_read_of_a_file_that_is_too_long(folder: Path) -> None:
    """Reading a tebibyte would take minutes, with the same result."""
    os.truncate(folder / "b", 1 << 40)

    def tick() -> None:
        raise AssertionError("a piece was read")

    with pytest.raises(CheckpointError, match=f"cannot read {folder / 'b'}: it has 1.00 TiB, expected at most 100 B"):
        check_files(folder, ["b"], tick, limit=100)
    with pytest.raises(CheckpointError, match=f"cannot read {folder / 'b'}"):
        check_files(folder, (), tick, others=["b"], limit=100)
    check_files(folder, ["a"], limit=100)


def test_a_file_saved_separately_is_checked_only_if_it_was_saved(folder: Path) -> None:
    (folder / "c").write_text("added by hand")
    check_files(folder, ["a"], others=["b", "c"])
    (folder / "b").write_text("changed")
    with pytest.raises(CheckpointError, match=rf"{folder / 'b'} is damaged"):
        check_files(folder, ["a"], others=["b", "c"])
    (folder / "b").unlink()
    with pytest.raises(CheckpointError, match=f"cannot read {folder / 'b'}"):
        check_files(folder, ["a"], others=["b", "c"])


def test_no_flipped_bit_of_the_record_leaves_a_file_unchecked(folder: Path) -> None:
    whole = (folder / CHECKSUMS).read_bytes()
    (folder / "b").write_text("changed")
    for at in range(len(whole)):
        for bit in range(8):
            content = bytearray(whole)
            content[at] ^= 1 << bit
            (folder / CHECKSUMS).write_bytes(content)
            with pytest.raises(CheckpointError):
                check_files(folder, ["a"], others=["b"])


def test_a_record_older_than_its_own_checksum_is_accepted(folder: Path) -> None:
    write_json(folder / CHECKSUMS, {"algorithm": "xxh3_64", "files": {name: checksum(folder / name) for name in NAMES}})
    check_files(folder, NAMES)


@pytest.mark.parametrize("content", ["{", "[]", '{"algorithm": "xxh3_64"}', '{"algorithm": "xxh9", "files": {}}'])
def test_damaged_checksums_are_named(folder: Path, content: str) -> None:
    (folder / CHECKSUMS).write_text(content)
    with pytest.raises(CheckpointError, match=str(folder / CHECKSUMS)):
        check_files(folder, NAMES)
