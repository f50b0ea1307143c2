"""Safetensors files, piece by piece, against the safetensors library in both directions. test_header.py tests headers."""

from __future__ import annotations

import json
import os
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from asynctile.storage.errors import CheckpointError
from asynctile.storage.tensors import TensorReader, TensorWriter

EXAMPLE = {
    "wte": np.arange(35, dtype=np.float32).reshape(7, 5) / 3,
    "half": np.arange(9, dtype=np.float16),
    "wide": np.arange(6, dtype=np.float64).reshape(2, 3) * np.pi,
    "ln.bias": np.linspace(-1, 1, 11, dtype=np.float32),
    "empty": np.empty((0, 4), np.float32),
    "scalar": np.array(2.5, np.float32),
}


def write(path, tensors, metadata=None):
    with TensorWriter(path, {name: (a.dtype, a.shape) for name, a in tensors.items()}, metadata) as writer:
        for name, array in tensors.items():
            writer.write(name, (), array)


@st.composite
def slices(draw, n):
    start = draw(st.integers(0, n))
    return slice(start, draw(st.integers(start, n)))


def test_the_library_reads_a_written_file(tmp_path):
    write(tmp_path / "a.safetensors", EXAMPLE, {"format": "pt", "note": "žluť"})
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == EXAMPLE.keys()
    for name, array in EXAMPLE.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    with safe_open(tmp_path / "a.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt", "note": "žluť"}
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_file_of_the_library_is_read(tmp_path):
    mask = np.ones((1, 1, 3, 3), bool)
    save_file(EXAMPLE | {"h.0.attn.bias": mask}, tmp_path / "a.safetensors", {"format": "pt"})
    with TensorReader(tmp_path / "a.safetensors") as reader:
        assert set(reader.names()) == {*EXAMPLE, "h.0.attn.bias"}
        assert reader.metadata == {"format": "pt"}
        assert (reader.dtype("wide"), reader.dtype("h.0.attn.bias")) == ("F64", "BOOL")
        assert reader.shape("h.0.attn.bias") == (1, 1, 3, 3)
        for name, array in EXAMPLE.items():
            assert reader.shape(name) == array.shape
            piece = reader.read(name)
            assert piece.dtype == np.float32
            assert piece.flags.c_contiguous
            assert piece.flags.writeable
            np.testing.assert_array_equal(piece, array.astype(np.float32))
        with pytest.raises(CheckpointError, match=r"h\.0\.attn\.bias .* holds BOOL"):
            reader.read("h.0.attn.bias")


def test_bfloat16_is_read_as_float32(tmp_path):
    bits = np.array([[0x3FC0, 0xFF80, 0x7F62], [0x0001, 0x0000, 0xC000]], np.uint16)
    array = (bits.astype(np.uint32) << 16).view(np.float32)
    assert array[:, 0].tolist() == [1.5, 2.0**-133]
    text = json.dumps({"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + bits.tobytes())
    with TensorReader(tmp_path / "a") as reader:
        assert reader.dtype("a") == "BF16"
        np.testing.assert_array_equal(reader.read("a"), array)
        np.testing.assert_array_equal(reader.read("a", (slice(0, 2), slice(1, 2))), array[:, 1:2])


@given(st.data())
def test_any_rectangle_is_read_and_written_in_place(tmp_path_factory, data):
    shape = data.draw(
        st.one_of(st.tuples(st.integers(1, 9)), st.tuples(st.integers(1, 9), st.integers(1, 9)))
    )
    dtype = data.draw(st.sampled_from([np.float32, np.float16, np.float64]))
    index = tuple(data.draw(slices(n)) for n in shape)
    before = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    piece = -1 - before[index].astype(np.float32)
    path = tmp_path_factory.mktemp("pieces") / "a.safetensors"
    tensors = {"first": ((3,), np.float32), "a": (shape, dtype), "last": ((2, 2), np.float16)}
    with TensorWriter(path, {name: (dtype, shape) for name, (shape, dtype) in tensors.items()}) as writer:
        writer.write("first", (slice(0, 3),), np.ones(3, np.float32))
        writer.write("a", (), before)
        writer.write("last", (), np.ones((2, 2)))
        writer.write("a", index, piece)
    expected = before.copy()
    expected[index] = piece
    found = load_file(path)
    np.testing.assert_array_equal(found["a"], expected)
    assert found["first"].sum() == 3
    assert found["last"].sum() == 4
    with TensorReader(path) as reader:
        np.testing.assert_array_equal(reader.read("a", index), piece)


def test_arrays_in_any_memory_order_are_written(tmp_path):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    with TensorWriter(tmp_path / "a", {"a": (np.float32, (6, 4))}) as writer:
        writer.write("a", (slice(0, 3),), array.T[:3])
        writer.write("a", (slice(3, 6), slice(0, 2)), array.T[3:, :2])
        writer.write("a", (slice(3, 6), slice(2, 4)), np.asfortranarray(array.T[3:, 2:]))
    np.testing.assert_array_equal(load_file(tmp_path / "a")["a"], array.T)


def test_many_threads_write_and_read_pieces(tmp_path):
    array = np.random.default_rng(1).random((64, 48), np.float32)
    tiles = [(slice(i, i + 8), slice(j, j + 8)) for i in range(0, 64, 8) for j in range(0, 48, 8)]
    with (
        TensorWriter(tmp_path / "a", {"a": (np.float32, array.shape)}) as writer,
        ThreadPoolExecutor(4) as pool,
    ):
        list(pool.map(lambda tile: writer.write("a", tile, array[tile]), tiles))
    with TensorReader(tmp_path / "a") as reader, ThreadPoolExecutor(4) as pool:
        for tile, piece in zip(tiles, pool.map(lambda tile: reader.read("a", tile), tiles), strict=True):
            np.testing.assert_array_equal(piece, array[tile])


def test_writing_and_reading_take_the_memory_of_one_piece(tmp_path):
    shape, tile = (2048, 1024), 128  # 8 MiB in pieces of 64 KiB
    piece = np.ones((tile, tile), np.float32)
    tiles = [
        (slice(i, i + tile), slice(j, j + tile))
        for i in range(0, shape[0], tile)
        for j in range(0, shape[1], tile)
    ]
    tracemalloc.start()
    try:
        with TensorWriter(tmp_path / "a", {"a": (np.float32, shape)}) as writer:
            for index in tiles:
                writer.write("a", index, piece)
        with TensorReader(tmp_path / "a") as reader:
            assert all(reader.read("a", index).min() == 1 for index in tiles)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_an_error_removes_the_file_and_leaves_an_older_one(tmp_path):
    write(tmp_path / "a", {"a": np.ones(3, np.float32)})
    with pytest.raises(RuntimeError), TensorWriter(tmp_path / "a", {"a": (np.float32, (5,))}) as writer:  # noqa: PT012
        writer.write("a", (), np.zeros(5))
        raise RuntimeError
    assert os.listdir(tmp_path) == ["a"]
    assert load_file(tmp_path / "a")["a"].sum() == 3


def test_a_file_with_a_piece_missing_is_refused_and_removed(tmp_path):
    writer = TensorWriter(tmp_path / "a", {"a": (np.float32, (5,)), "b": (np.float32, (2,))})
    writer.write("a", (slice(0, 4),), np.zeros(4))
    writer.write("b", (), np.zeros(2))
    with pytest.raises(ValueError, match=r"missing: a \(4 bytes\)"):
        writer.close()
    writer.close()  # a second close does nothing
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_reported_before_any_work(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(CheckpointError, match=r"cannot reserve \d+ bytes for .*: No space left"):
        TensorWriter(tmp_path / "a", {"a": (np.float32, (5,))})
    assert os.listdir(tmp_path) == []
    with pytest.raises(CheckpointError, match="cannot write"):
        TensorWriter(tmp_path / "missing" / "a", {})


def test_wrong_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match="int32 cannot be written"):
        TensorWriter(tmp_path / "a", {"a": (np.int32, (5,))})
    with pytest.raises(ValueError, match="__metadata__"):
        TensorWriter(tmp_path / "a", {"__metadata__": (np.float32, (5,))})
    with TensorWriter(tmp_path / "a", {"a": (np.float32, (5,)), "cube": (np.float32, (0, 1, 1))}) as writer:
        with pytest.raises(ValueError, match=r"shape \(4,\) for a piece of shape \(5,\)"):
            writer.write("a", (), np.zeros(4))
        with pytest.raises(KeyError, match="has no tensor b"):
            writer.write("b", (), np.zeros(4))
        for index in [(slice(None), slice(None)), (slice(0, 4, 2),), (3,)]:
            with pytest.raises(ValueError, match="does not fit tensor a"):
                writer.write("a", index, np.zeros(4))
        with pytest.raises(ValueError, match="up to 2 dimensions"):
            writer.write("cube", (), np.zeros((0, 1, 1)))
        writer.write("a", (), np.zeros(5))


def shard(folder: Path, parts: dict[str, dict[str, np.ndarray]], weight_map=None):
    for file, tensors in parts.items():
        save_file(tensors, folder / file, {"format": "pt"})
    weight_map = weight_map or {name: file for file, tensors in parts.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


def test_a_folder_is_read_through_its_file_or_its_index(tmp_path):
    parts = {
        "model-1.safetensors": {"a": np.ones(3, np.float32)},
        "model-2.safetensors": {"b": np.zeros((2, 2), np.float32)},
    }
    shard(tmp_path, parts)
    with TensorReader(tmp_path) as reader:
        assert reader.names() == ["a", "b"]
        assert reader.metadata == {"format": "pt"}
        np.testing.assert_array_equal(reader.read("b"), np.zeros((2, 2)))
    save_file({"whole": np.ones(1, np.float32)}, tmp_path / "model.safetensors")
    with TensorReader(tmp_path) as reader:
        assert reader.names() == ["whole"]


def test_a_missing_file_is_read_through_the_index_beside_its_place(tmp_path):
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "part-1.safetensors")
    (tmp_path / "whole.safetensors.index.json").write_text('{"weight_map": {"a": "part-1.safetensors"}}')
    with TensorReader(tmp_path / "whole.safetensors") as reader:
        assert reader.names() == ["a"]
        assert reader.files == ["whole.safetensors.index.json", "part-1.safetensors"]
    save_file({"b": np.ones(3, np.float32)}, tmp_path / "whole.safetensors")
    with TensorReader(tmp_path / "whole.safetensors") as reader:
        assert reader.names() == ["b"]


@pytest.mark.parametrize(("weight_map", "message"), [
    ({"a": "model-1.safetensors", "c": "model-1.safetensors"}, "lacks tensor 'c'"),
    ({"a": "model-9.safetensors"}, r"cannot read .*model-9\.safetensors"),
    ({"a": "../model-1.safetensors"}, "is damaged: expected a weight_map"),
    ({"a": 5}, "is damaged: expected a weight_map"),
    ({"a": "x\0y"}, "is damaged: expected a weight_map"),
    ({"a": "x\ud800y"}, "is damaged: expected a weight_map"),
    ({"a": "x" * 300}, "is damaged: expected a weight_map"),
])  # fmt: skip
def test_a_wrong_index_is_named(tmp_path, weight_map, message):
    shard(tmp_path, {"model-1.safetensors": {"a": np.ones(3, np.float32)}}, weight_map)
    with pytest.raises(CheckpointError, match=message):
        TensorReader(tmp_path)


def test_missing_files_are_named(tmp_path):
    (tmp_path / "folder.safetensors").mkdir()
    for path in [tmp_path, tmp_path / "none.safetensors", tmp_path / "folder.safetensors"]:
        with pytest.raises(CheckpointError, match="cannot read"):
            TensorReader(path)


def test_a_file_cut_anywhere_is_refused_with_its_bytes(tmp_path):
    path = tmp_path / "a.safetensors"
    write(path, {"a": np.ones(3, np.float32)})
    whole = path.read_bytes()
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        with pytest.raises(CheckpointError, match=rf"a\.safetensors is truncated.*found {n}\b"):
            TensorReader(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(
        CheckpointError, match=f"longer .* expected {len(whole)} bytes, found {len(whole) + 1}"
    ):
        TensorReader(path)


def test_a_file_that_shrinks_while_open_is_reported(tmp_path):
    path = tmp_path / "a.safetensors"
    write(path, {"a": np.ones(3000, np.float32)})
    with TensorReader(path) as reader:
        os.truncate(path, 4096)
        with pytest.raises(CheckpointError, match=r"shrank while open.*found 4096"):
            reader.read("a")


def test_an_index_names_no_more_files_than_there_are_tensors(tmp_path):
    parts = {f"model-{n}.safetensors": {f"t{n}": np.ones(1, np.float32)} for n in range(3)}
    shard(tmp_path, parts)
    with TensorReader(tmp_path, most=3) as reader:
        assert reader.names() == ["t0", "t1", "t2"]
    with pytest.raises(CheckpointError, match=r"index\.json names 3 files for a model of at most 2 tensors"):
        TensorReader(tmp_path, most=2)


@pytest.mark.timeout(10)
def test_a_pipe_in_place_of_tensors_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(CheckpointError, match=r"cannot read .*model\.safetensors: it is a pipe"):
            TensorReader(path)


def test_bfloat16_takes_bits_and_is_read_as_float32(tmp_path):
    bits = np.arange(0x3F00, 0x3F30, dtype=np.uint16).reshape(6, 8)
    with TensorWriter(tmp_path / "a", {"a": (np.uint16, bits.shape)}) as writer:
        writer.write("a", (slice(0, 6), slice(0, 3)), bits[:, :3])
        writer.write("a", (slice(0, 6), slice(3, 8)), bits[:, 3:])
        with pytest.raises(ValueError, match="tensor a got float32 for bfloat16"):
            writer.write("a", (), np.zeros(bits.shape, np.float32))
    with TensorReader(tmp_path / "a") as reader:
        assert reader.dtype("a") == "BF16"
        np.testing.assert_array_equal(reader.read("a"), (bits.astype(np.uint32) << 16).view(np.float32))
