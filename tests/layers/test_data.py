"""Text to tokens to batches."""

from __future__ import annotations

import itertools
import json
import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers import text as text_module
from asynctile.layers import tokens as tokens_module
from asynctile.layers.data import (
    Batches,
    TextSource,
    TokenFile,
    bigram_entropy,
    open_tokens,
    split,
    tokenise,
    validation_batches,
)
from asynctile.layers.tokenizer import ByteTokenizer, train_bpe
from asynctile.storage.errors import CheckpointError


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


def counted(path, n, dtype=np.uint16):
    np.arange(n, dtype=dtype).tofile(path)
    return TokenFile(path, dtype)


def test_a_folder_is_its_text_files_in_sorted_order(folder):
    source = TextSource(folder)
    assert whole(source) == b"aacczz"
    assert source.nbytes == 6


def test_a_file_is_read_whatever_it_holds(folder):
    assert whole(TextSource(folder / "picture.bin")) == b"PNG\0\0"


def test_no_path_is_the_source_of_the_standard_library():
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


def test_bytes_that_are_no_utf8_are_read_too(tmp_path):
    for content in (b"\xff", b"\xe6\x97", b"\x80" * 9, b"a\xf0\x9f"):
        (tmp_path / "a").write_bytes(content)
        assert whole(TextSource(tmp_path / "a")) == content


def test_data_that_is_missing_or_empty_is_named(tmp_path):
    (tmp_path / "empty.txt").touch()
    for path, message in [(tmp_path / "none", "cannot be read: No such file"), (tmp_path / "empty.txt", "files are empty"),
                          (tmp_path, "files are empty")]:  # fmt: skip
        with pytest.raises(ValueError, match=message) as caught:
            TextSource(path)
        assert str(path) in str(caught.value)
    (tmp_path / "empty.txt").unlink()
    with pytest.raises(ValueError, match="it has no text files"):
        TextSource(tmp_path)


def test_tokens_are_written_once_and_reused_only_for_the_same_text_and_tokenizer(
    folder, tmp_path, monkeypatch
):
    cache = tmp_path / "cache"
    seen = []
    file = tokenise(
        TextSource(folder), ByteTokenizer(), cache, progress=lambda done, total: seen.append((done, total))
    )
    assert file[:].tobytes() == np.frombuffer(b"aacczz", np.uint8).astype(np.uint16).tobytes()
    assert seen[-1] == (6, 6)
    assert sorted(os.listdir(cache)) == ["tokens.bin", "tokens.json"]

    write = tokens_module._write_tokens
    made = []
    monkeypatch.setattr(tokens_module, "_write_tokens", lambda *args: made.append(args[1]) or write(*args))
    assert len(tokenise(TextSource(folder), ByteTokenizer(), cache)) == 6
    assert made == []

    bpe = train_bpe(["aa cc zz"] * 3, 260)
    assert len(tokenise(TextSource(folder), bpe, cache)) < 6
    assert made == [bpe]
    (folder / "d.txt").write_text("dd")
    assert len(tokenise(TextSource(folder), ByteTokenizer(), cache)) == 8
    os.truncate(cache / "tokens.bin", 6)
    assert len(tokenise(TextSource(folder), ByteTokenizer(), cache)) == 8
    (cache / "tokens.json").write_text("{")
    assert len(tokenise(TextSource(folder), ByteTokenizer(), cache)) == 8
    assert len(made) == 4


def test_a_failure_while_making_tokens_leaves_what_was_there(folder, tmp_path):
    tokenise(TextSource(folder), ByteTokenizer(), tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in ("tokens.bin", "tokens.json")}
    (folder / "d.txt").write_text("dd")

    def fail(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenise(TextSource(folder), ByteTokenizer(), tmp_path, progress=fail)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert sorted(os.listdir(tmp_path)) == ["data", "tokens.bin", "tokens.json"]


def test_a_token_file_of_the_wrong_size_is_named(tmp_path):
    for content in (b"", b"abc"):
        (tmp_path / "t").write_bytes(content)
        with pytest.raises(ValueError, match=f"has {len(content)} bytes, expected a multiple of 2"):
            TokenFile(tmp_path / "t", np.uint16)
    with pytest.raises(ValueError, match="cannot be read"):
        TokenFile(tmp_path / "none", np.uint16)


def test_tokens_read_the_same_after_their_pages_were_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens_module, "_TOUCHED_NBYTES", 1)
    file = counted(tmp_path / "t", 20_000)
    early = file[100:200]
    assert file[15_000:15_003].tolist() == [15_000, 15_001, 15_002]
    assert early.tolist() == list(range(100, 200))
    with pytest.raises(ValueError, match="read-only"):
        early[0] = 1


def test_the_last_part_is_held_out(tmp_path):
    file = counted(tmp_path / "t", 1001)
    train, validation = split(file)
    assert (len(train), len(validation)) == (950, 51)
    assert train[:3].tolist() == [0, 1, 2]
    assert train[948:2000].tolist() == [948, 949]
    assert validation[:2].tolist() == [950, 951]
    assert validation[5:2].size == 0
    for fraction in (0, 1, -0.1, math.nan):
        with pytest.raises(ValueError, match="validation_fraction"):
            split(file, fraction)


def test_targets_are_the_next_tokens(tmp_path):
    train, _ = split(counted(tmp_path / "t", 1000))
    for tokens, targets in itertools.islice(Batches(train, 4, 8, seed=1), 5):
        assert tokens.shape == targets.shape == (4, 8)
        assert tokens.dtype == targets.dtype == np.int64
        assert tokens.flags.c_contiguous
        assert targets.flags.c_contiguous
        np.testing.assert_array_equal(targets, tokens + 1)
        assert targets.max() < 950


def test_batch_n_is_a_function_of_seed_and_n_alone():
    tokens = np.arange(5000)
    first = [batch[0] for batch in itertools.islice(Batches(tokens, 3, 7, seed=5), 6)]
    np.testing.assert_array_equal(Batches(tokens, 3, 7, seed=5).batch(4)[0], first[4])
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(Batches(tokens, 3, 7, seed=6).batch(0)[0], first[0])
    # Written down: a run that is resumed with another numpy must get the batches that it would have got.
    assert first[0][:, 0].tolist() == [2780, 3099, 4672]


def test_windows_reach_every_token():
    batches = Batches(np.arange(12), 64, 8, seed=0)
    starts = {int(start) for tokens, _ in itertools.islice(batches, 4) for start in tokens[:, 0]}
    assert starts == {0, 1, 2, 3}


def test_batches_resume_exactly():
    batches = Batches(np.arange(5000), 3, 7, seed=2**64 - 1)
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(batches.state_dict()))
    expected = [next(batches)[0] for _ in range(3)]
    again = Batches(np.arange(5000), 3, 7, seed=2**64 - 1)
    again.load_state_dict(state)
    for batch in expected:
        np.testing.assert_array_equal(next(again)[0], batch)


@pytest.mark.parametrize(
    "change",
    [{"seed": 2}, {"batch_size": 4}, {"seq_len": 8}, {"tokens": 4999}, {"position": -1}, {"position": None}],
)
def test_a_state_of_other_batches_is_refused(change):
    batches = Batches(np.arange(5000), 3, 7, seed=1)
    with pytest.raises(ValueError, match=next(iter(change))):
        batches.load_state_dict(batches.state_dict() | change)


def test_validation_windows_are_fixed_and_do_not_overlap():
    tokens = np.arange(1000)
    batches = list(validation_batches(tokens, 4, 10))
    assert len(batches) == 24  # of 99 windows, 3 fill no batch
    starts = np.concatenate([batch[:, 0] for batch, _ in batches])
    assert np.diff(starts).min() >= 10
    for batch, targets in batches:
        np.testing.assert_array_equal(targets, batch + 1)
    few = np.concatenate([batch[:, 0] for batch, _ in validation_batches(tokens, 4, 10, limit=2)])
    assert few.tolist() == [0, 120, 240, 370, 490, 610, 740, 860]


def test_windows_that_fill_no_batch_come_with_ignored_targets():
    ((tokens, targets),) = validation_batches(np.arange(25), 4, 10, limit=3)
    assert tokens[:, 0].tolist() == [0, 10, 0, 0]
    assert (targets[2:] == -100).all()
    np.testing.assert_array_equal(targets[:2], tokens[:2] + 1)


def test_data_shorter_than_one_sequence_is_told_with_the_way_out():
    for make in (lambda: Batches(np.arange(8), 1, 8, seed=0), lambda: validation_batches(np.arange(8), 1, 8)):
        with pytest.raises(
            ValueError, match=r"8 tokens, shorter than one sequence: .* seq_len \+ 1 = 9; give more text"
        ):
            make()
    assert Batches(np.arange(9), 1, 8, seed=0).batch(0)[0].tolist() == [list(range(8))]


@pytest.mark.parametrize("arguments", [
    {"batch_size": 0}, {"batch_size": 1.5}, {"seq_len": -1}, {"seq_len": True}, {"seed": -1}, {"seed": 2**64}, {"seed": 0.5},
])  # fmt: skip
def test_numbers_out_of_range_are_named(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"{name} {value!r}".replace(".", r"\.")):
        Batches(np.arange(100), **({"batch_size": 2, "seq_len": 4, "seed": 0} | arguments))


def test_a_limit_below_one_is_named():
    with pytest.raises(ValueError, match="limit 0"):
        validation_batches(np.arange(100), 1, 4, limit=0)


def slow_entropy(tokens, vocab_size):
    counts = np.zeros((vocab_size, vocab_size))
    for a, b in itertools.pairwise(tokens):
        counts[a, b] += 1
    model = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return -np.mean([math.log(model[a, b]) for a, b in itertools.pairwise(tokens)])


@pytest.mark.parametrize("dense_pairs", [0, 1 << 22])
@pytest.mark.parametrize("piece", [7, 1 << 20])
def test_bigram_entropy_is_the_loss_of_the_best_bigram_model(monkeypatch, dense_pairs, piece):
    monkeypatch.setattr("asynctile.layers.entropy._DENSE_PAIRS", dense_pairs)
    monkeypatch.setattr("asynctile.layers.entropy._PIECE", piece)
    tokens = np.random.default_rng(3).integers(0, 9, 400).astype(np.uint16)
    tokens[::2] //= 3
    assert bigram_entropy(tokens, 9) == pytest.approx(slow_entropy(tokens.tolist(), 9), rel=1e-12)


def test_bigram_entropy_of_known_texts(tmp_path):
    assert bigram_entropy(np.array([0, 1] * 50), 2) == pytest.approx(0, abs=1e-12)
    uniform = np.random.default_rng(0).integers(0, 4, 100_000)
    assert bigram_entropy(uniform, 4) == pytest.approx(math.log(4), abs=1e-3)
    assert bigram_entropy(counted(tmp_path / "t", 65_000), 65_536) == pytest.approx(0, abs=1e-9)


def test_bigram_entropy_refuses_what_has_none():
    with pytest.raises(ValueError, match="of 1 tokens does not exist"):
        bigram_entropy(np.array([1]), 2)
    with pytest.raises(ValueError, match="token id 5 is outside"):
        bigram_entropy(np.array([1, 5]), 5)


def test_a_disk_that_is_full_names_the_file_of_the_tokens(tmp_path, monkeypatch):
    (tmp_path / "text").write_text("some text")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        tokenise(TextSource(tmp_path / "text"), ByteTokenizer(), tmp_path / "tokens")
    assert caught.value.filename == str(tmp_path / "tokens" / "tokens.bin")
    assert list((tmp_path / "tokens").iterdir()) == []


@pytest.mark.timeout(10)
def test_data_that_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path, why in [
        (tmp_path / "pipe", "it is a pipe"), ("/dev/zero", "it is a device"), (tmp_path / "a\0b", "no file can have this name"),
        (tmp_path / "loop", "Too many levels of symbolic links"), (tmp_path / "\ud800", "no file can have this name"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=rf"^data .* cannot be read: {why}"):
            TextSource(path)


@pytest.mark.timeout(10)
def test_what_is_no_file_in_a_folder_is_left_out(folder):
    expected = TextSource(folder).files
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "above").symlink_to(folder)
    assert TextSource(folder).files == expected


RECORD = {"dtype": "uint16", "nbytes": 8}


@pytest.mark.parametrize(("record", "error", "sentence"), [
    ({}, CheckpointError, r"tokens\.json is damaged: it has the dtype None, expected uint16 or uint32"),
    (RECORD | {"dtype": "V0"}, CheckpointError, "dtype 'V0'"),
    (RECORD | {"dtype": "float32"}, CheckpointError, "dtype 'float32'"),
    (RECORD | {"dtype": ["uint16"]}, CheckpointError, "dtype"), (RECORD | {"dtype": {}}, CheckpointError, "dtype"),
    ([1], CheckpointError, "dtype None"), (RECORD | {"nbytes": 10**99}, ValueError, r"tokens\.bin has 8 bytes, .* says 10000"),
    (RECORD | {"nbytes": None}, ValueError, "says None"),
    (RECORD | {"dtype": "uint32", "nbytes": 4}, ValueError, "has 8 bytes"),
])  # fmt: skip
def test_a_record_of_tokens_that_is_damaged_is_named(tmp_path, record, error, sentence):
    (tmp_path / "tokens.bin").write_bytes(bytes(8))
    (tmp_path / "tokens.json").write_text(json.dumps(RECORD))
    assert open_tokens(tmp_path)[:].tolist() == [0] * 4
    (tmp_path / "tokens.json").write_text(json.dumps(record))
    with pytest.raises(error, match=sentence):
        open_tokens(tmp_path)


@pytest.mark.timeout(10)
def test_tokens_that_are_no_regular_file_or_of_another_length_are_named(tmp_path):
    (tmp_path / "tokens.json").write_text(json.dumps(RECORD))
    os.mkfifo(tmp_path / "tokens.bin")
    with pytest.raises(ValueError, match=r"tokens\.bin cannot be read: it is a pipe"):
        open_tokens(tmp_path)
    os.remove(tmp_path / "tokens.bin")
    (tmp_path / "tokens.bin").touch()
    os.truncate(tmp_path / "tokens.bin", 1 << 40)
    with pytest.raises(ValueError, match=rf"tokens\.bin has {1 << 40} bytes"):
        open_tokens(tmp_path)


@pytest.mark.parametrize("position", [-1, 2**63, 10**99, 1.5, True, None, "1"])
def test_a_position_that_cannot_be_counted_is_refused(position):
    batches = Batches(np.arange(100), 2, 4, 1)
    with pytest.raises(ValueError, match="position"):
        batches.load_state_dict(batches.state_dict() | {"position": position})
    batches.load_state_dict(batches.state_dict() | {"position": 2**63 - 1})
    next(batches)
