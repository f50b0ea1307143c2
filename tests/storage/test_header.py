"""Headers of safetensors files that lie, are endless, or could not be read back."""

from __future__ import annotations

import json
import os
import tracemalloc

import numpy as np
import pytest

from asynctile.storage.errors import CheckpointError
from asynctile.storage.header import HEADER_NBYTES
from asynctile.storage.tensors import TensorReader, TensorWriter

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize("header", [
    b"[]", b"{", b"\xff\xff", b"5",
    {"a": 5}, {"a": {}}, {"a": ENTRY | {"shape": [3]}}, {"a": ENTRY | {"shape": [-2]}}, {"a": ENTRY | {"shape": 2}},
    {"a": ENTRY | {"data_offsets": [8, 0]}}, {"a": ENTRY | {"data_offsets": [0]}}, {"a": ENTRY | {"dtype": 4}},
    {"a": ENTRY | {"data_offsets": [4, 12]}}, {"a": ENTRY, "b": ENTRY}, {"a": ENTRY, "__metadata__": 3},
])  # fmt: skip
def test_a_header_that_lies_is_refused(tmp_path, header):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(CheckpointError, match=r"a\.safetensors is damaged"):
        TensorReader(path)


@pytest.mark.parametrize("entry", [
    {"shape": [2] * 10**5}, {"shape": [2**63] * 1000}, {"shape": [10**90] * 16}, {"shape": [0, 10**101]},
    {"shape": {"a": [1] * 10**5}}, {"shape": [[]] * 10**5}, {"dtype": "F" * 10**5}, {"dtype": "\x1b[31m"},
    {"data_offsets": [0] * 10**5}, {"data_offsets": [0, 10**101]}, {"shape": [float("nan")]},
])  # fmt: skip
@pytest.mark.parametrize("name", ["a", "a" * 10**5, "\ud800\0\x1b[31m"])
def test_an_endless_header_is_refused_in_one_short_sentence(tmp_path, entry, name):
    text = json.dumps({name: ENTRY | entry}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(CheckpointError, match=r"a\.safetensors is damaged") as caught:
        TensorReader(path)
    assert len(str(caught.value)) < 800
    assert str(caught.value).isprintable()


def test_a_header_is_as_long_as_its_tensors_need(tmp_path):
    path = tmp_path / "a.safetensors"
    table = {f"h.{n}.x": {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]} for n in range(20_000)}
    text = json.dumps(table).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4 * len(table)))
    with TensorReader(path, most=len(table)) as reader:
        assert len(reader.names()) == 20_000
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=rf"header has {len(text)} bytes, .* for a model of 100 tensors"):
            TensorReader(path, most=100)
        with open(path, "r+b") as file:
            file.write((1 << 30).to_bytes(8, "little"))
            file.truncate(1 << 40)
        with pytest.raises(CheckpointError, match=rf"header has {1 << 30} bytes, expected at most {HEADER_NBYTES}"):
            TensorReader(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_header_that_could_not_be_read_back_is_not_written(tmp_path):
    tensors = {f"{n}" * 1000: (np.float32, (1,)) for n in range(10_000)}
    with pytest.raises(ValueError, match=r"10000 tensors need a header of \d+ bytes"):
        TensorWriter(tmp_path / "a.safetensors", tensors)
    assert os.listdir(tmp_path) == []


def test_an_unknown_dtype_does_no_harm_to_others(tmp_path):
    text = json.dumps({"a": ENTRY, "b": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [8, 11]}}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(11))
    with TensorReader(path) as reader:
        assert reader.dtype("b") == "F6_E2M3"
        assert reader.read("a").tolist() == [0, 0]
