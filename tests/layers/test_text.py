"""Sources of text: one file, a folder of many, documents in lines of JSON. test_tokens.py tests their tokens."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers import jsonl
from asynctile.layers import text as text_module
from asynctile.layers.data_source import open_source
from asynctile.layers.text import TextSource
from asynctile.layers.tokenizer import ByteTokenizer, HuggingFaceTokenizer, train_bpe
from asynctile.layers.tokens import TextPiece


@pytest.fixture
def folder(tmp_path):
    data = tmp_path / "data"
    (data / "b").mkdir(parents=True)
    (data / "b" / "z.txt").write_text("zz")
    (data / "a.txt").write_text("aa")
    (data / "c.md").write_text("cc")
    (data / ".hidden").write_text("no")
    (data / "picture.bin").write_bytes(b"PNG\0\0")
    return data


def whole(source):
    return b"".join(source.pieces())


def test_a_folder_is_its_text_files_in_sorted_order(folder):
    source = TextSource(folder)
    assert whole(source) == b"aacczz"
    assert source.nbytes == 6


def test_without_a_path_the_text_is_the_source_of_the_standard_library():
    source = TextSource(None)
    assert source.nbytes > 5_000_000
    names = [file.relative_to(source.path).as_posix() for file in source.files]
    assert {"argparse.py", "asyncio/events.py"} <= set(names)
    assert all(name.endswith(".py") for name in names)
    assert not any(
        part in name.split("/")
        for name in names
        for part in ("site-packages", "test", "tests", "__pycache__")
    )
    assert TextSource(None).fingerprint == source.fingerprint


@given(
    st.lists(st.sampled_from(["a", "\n", "ž", "日", "😀", "long words\n"]), max_size=60), st.integers(4, 9)
)
def test_pieces_are_the_text_and_cut_no_character(tmp_path_factory, parts, piece_nbytes):
    content = ("x" + "".join(parts)).encode()
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "PIECE_NBYTES", piece_nbytes)
        pieces = list(TextSource(path).pieces())
    assert b"".join(pieces) == content
    assert all(0 < len(piece) <= piece_nbytes for piece in pieces)
    for piece in pieces:
        piece.decode()


def test_bytes_that_are_not_utf8_are_read_too(tmp_path):
    for content in (b"\xff", b"\xe6\x97", b"\x80" * 9, b"a\xf0\x9f"):
        (tmp_path / "a").write_bytes(content)
        assert whole(TextSource(tmp_path / "a")) == content


def test_data_that_is_missing_or_empty_is_named(tmp_path):
    (tmp_path / "empty.txt").touch()
    for path, message in [(tmp_path / "none", "cannot be read: No such file"),
                          (tmp_path / "empty.txt", "has no text: the file is empty;"),
                          (tmp_path, "has no text: every file is empty;")]:  # fmt: skip
        with pytest.raises(ValueError, match=message) as caught:
            TextSource(path)
        assert str(path) in str(caught.value)
    (tmp_path / "empty.txt").unlink()
    with pytest.raises(ValueError, match="it has no text files"):
        TextSource(tmp_path)


@pytest.mark.timeout(10)
def test_a_special_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path, why in [
        (tmp_path / "pipe", "it is a pipe"), ("/dev/zero", "it is a device"), (tmp_path / "a\0b", "no file can have this name"),
        (tmp_path / "loop", "Too many levels of symbolic links"), (tmp_path / "\ud800", "no file can have this name"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=rf"^data .* cannot be read: {why}"):
            TextSource(path)


@pytest.mark.timeout(10)
def test_special_files_in_a_folder_are_left_out(folder):
    expected = TextSource(folder).files
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "above").symlink_to(folder)
    assert TextSource(folder).files == expected


def test_a_link_is_read_by_its_own_name_as_caches_have_them(tmp_path):
    (tmp_path / "blob").write_text('{"text": "one"}\n')
    for name in ("train.jsonl", "TRAIN.JSONL"):
        (tmp_path / name).symlink_to("blob")
        assert whole(open_source(tmp_path / name)) == b"one"
    assert whole(open_source(tmp_path / "blob")) == b'{"text": "one"}\n'


def test_files_without_text_in_a_folder_are_left_out_and_counted_in_a_line(folder):
    source = TextSource(folder)
    assert source.note == "1 binary file was left out: picture.bin"
    (folder / "b" / "a\nb.gz").write_bytes(gzip.compress(b"text", mtime=1))
    assert TextSource(folder).note == "2 binary files were left out: picture.bin, b/a\\nb.gz"
    for n in range(2):
        (folder / f"q{n}").write_bytes("wide".encode("utf-16"))
    assert TextSource(folder).note == "4 binary files were left out: picture.bin, q0, q1, ..."
    assert whole(TextSource(folder)) == b"aacczz"
    os.remove(folder / "picture.bin")
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file():
            path.write_bytes(b"\0")
    with pytest.raises(ValueError, match="it has no text files, and 6 binary files were left out: a"):
        TextSource(folder)


def lines(*found):
    return "".join(json.dumps(line) + "\n" for line in found)


def documents(source):
    """Return the texts between separators."""
    found = []
    for piece in source.read():
        found = [*found, piece.text] if piece.begins or not found else [*found[:-1], found[-1] + piece.text]
    return found


def test_a_line_is_a_document(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one\\ntwo", "n": 1}\r\n\n  \r\n{"text": ""}\n'
                     b'{"meta": NaN, "text": "\\u010d\\ud83d"}\n{"text": "last"}')
    assert documents(open_source(path)) == [b"one\ntwo", "\u010d\ufffd".encode(), b"last"]
    assert whole(open_source(path)) == "one\ntwo\u010d\ufffdlast".encode()
    path.write_text(lines({"text": "no", "body": "yes"}))
    assert documents(open_source(path, "body")) == [b"yes"]


@pytest.mark.parametrize(("line", "sentence"), [
    ('{"body": "x", "id": 5}', r"has no field 'text' \(it has 'body', 'id'\); name the field .* with --text-field"),
    ("{}", r"has no field 'text' \(it is empty\)"),
    (json.dumps(dict.fromkeys("abcdefg")), r"has no field 'text' \(it has 'a', 'b', 'c', 'd', 'e' and more\);"),
    ('{"text": 5}', "has 5 as 'text', expected a string"), ('{"text": null}', "has None as 'text', expected a string"),
    ('{"text": ["a"]}', "has \\['a'\\] as 'text'"),
    ('["text"]', r"is \['text'\], expected an object with the field 'text'"), ('"text"', "is 'text', expected an object"),
    ('{"text": "a', "is not valid JSON \\(Unterminated string starting at: character 10\\)"),
    ("text", "is not valid JSON \\(Expecting value"),
    ('{"text": "a"} {"text": "b"}', "is not valid JSON \\(Extra data"),
    ("[" * 100_000, "is not valid JSON \\(it is nested deeper than 64"),
    ('{"text": "\udcff"}', "is not valid JSON \\(byte 10 is not UTF-8"),
])  # fmt: skip
def test_an_invalid_line_is_named_by_file_and_number(tmp_path, line, sentence):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n\n' + line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(ValueError, match=rf"^data {path}, line 3, {sentence}") as caught:
        whole(open_source(path))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500


def test_an_endless_line_is_refused_before_it_is_in_memory(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(lines({"text": "fine"}))
    os.truncate(path, 3 << 30)  # zeros, and no end of a line
    (tmp_path / "plain.jsonl").write_text(lines({"text": "x" * 5000}))
    tracemalloc.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_module, "HEAD_NBYTES", 8)
            patch.setattr(jsonl, "LINE_NBYTES", 4096)
            for name in ("a", "plain"):
                with pytest.raises(ValueError, match=rf"{name}\.jsonl cannot be read: line [12] has more than 4.00 KiB; split"):
                    whole(open_source(tmp_path / f"{name}.jsonl"))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_a_few_lines_for_any_length_of_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(lines({"text": "a document of some length " * 400}) * 900)
    assert path.stat().st_size > 8 << 20
    source = open_source(path)
    tracemalloc.start()
    try:
        tokens = source.tokens(ByteTokenizer(), tmp_path / "tokens")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert len(tokens) == 900 * (26 * 400 + 2) - 2


def test_an_end_token_or_a_blank_line_separates_documents_and_nothing_joins_them(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_text("aa")
    (folder / "b.txt").write_text("\nbb\n")
    (folder / "c.jsonl").write_text(lines({"text": "cc\n"}, {"text": "\ncc"}))
    (folder / "d.txt").write_text("\ndd")
    source = open_source(folder)
    assert bytes(source.tokens(ByteTokenizer(), tmp_path / "1")[:].astype(np.uint8)) == b"aa\nbb\n\n\ncc\n\n\n\ncc\n\n\ndd"

    bpe = train_bpe(["\n\n\n\n"] * 50, 300)
    parts = [b"aa", b"\nbb\n", b"cc\n", b"\ncc", b"\ndd"]
    blank = bpe.encode("\n\n").tolist()
    assert len(bpe.encode("\n\n\n\n")) < 2 * len(blank), "this tokenizer joins blank lines"
    joined = [bpe.encode(part).tolist() for part in parts]
    expected = joined[0] + joined[1] + blank + joined[2] + blank + joined[3] + blank + joined[4]
    assert source.tokens(bpe, tmp_path / "2")[:].tolist() == expected

    raw = tokenizers.Tokenizer.from_str(bpe.to_json().decode())
    raw.add_special_tokens(["<|endoftext|>"])
    ending = HuggingFaceTokenizer(raw)
    end = [ending.special["<|endoftext|>"]]
    expected = joined[0] + joined[1] + end + joined[2] + end + joined[3] + end + joined[4]
    assert source.tokens(ending, tmp_path / "3")[:].tolist() == expected


TEXTS = st.lists(st.sampled_from(["a", "\n", "\u017e", "\U0001f600", "words\n"]), max_size=20).map("".join)


@given(st.lists(TEXTS, min_size=1, max_size=5), st.integers(4, 9))
def test_the_pieces_of_a_document_do_not_depend_on_other_documents(tmp_path_factory, texts, piece_nbytes):
    folder = tmp_path_factory.mktemp("documents")
    (folder / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "PIECE_NBYTES", piece_nbytes)
        alone = []
        for text in filter(None, texts):
            (folder / "one.txt").write_text(text)
            alone += [piece.text for piece in TextSource(folder / "one.txt").read()]
        pieces = list(open_source(folder / "all.jsonl").read())
    assert [piece.text for piece in pieces] == alone
    assert sum(piece.begins for piece in pieces) == len([*filter(None, texts)])
    places = [piece.nbytes for piece in pieces]
    assert places == sorted(places) and all(place <= (folder / "all.jsonl").stat().st_size for place in places)


def test_another_field_is_another_text(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines({"text": "one", "more": "three"}))
    assert len(open_source(tmp_path / "a.jsonl").tokens(ByteTokenizer(), tmp_path / "tokens")) == 3
    assert len(open_source(tmp_path / "a.jsonl", "more").tokens(ByteTokenizer(), tmp_path / "tokens")) == 5
    (tmp_path / "a.txt").write_text("one")
    assert open_source(tmp_path / "a.txt").fingerprint == open_source(tmp_path / "a.txt", "more").fingerprint


def test_a_file_of_empty_documents_has_no_tokens(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines({"text": ""}) + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl of 14 bytes gives no tokens"):
        open_source(tmp_path / "a.jsonl").tokens(ByteTokenizer(), tmp_path / "tokens")


def test_pieces_say_how_much_of_the_files_is_read(tmp_path):
    (tmp_path / "a.txt").write_text("aaaa")
    (tmp_path / "b.jsonl").write_text(lines({"text": "b"}, {"text": "c"}))
    pieces = [TextPiece(b"aaaa", False, 4), TextPiece(b"b", True, 18), TextPiece(b"c", True, 32)]
    assert list(open_source(tmp_path).read()) == pieces
