"""The division of a checkpoint's tensors among nodes."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from asynctile.layers.shards import Shards
from asynctile.storage.tile import Tile


def tensor(name: str, *rows: int) -> Any:
    """Return a tensor of one column, in tiles of so many rows."""
    tiles = {(i, 0): Tile(f"{name}[{i}]", (size,), "float32") for i, size in enumerate(rows)}
    return SimpleNamespace(name=name, shape=(sum(rows),), weights=tiles)


def shards(tensors: list[Any], homes: dict[Tile, int], nodes: int) -> Shards:
    return Shards("w.safetensors", tensors, ("weights",), homes, nodes)


def test_a_tensor_is_written_where_it_stands_if_that_is_balanced() -> None:
    tensors = [tensor("a", 8), tensor("b", 8), tensor("c", 8), tensor("d", 8)]
    homes = {item.weights[0, 0]: node for item, node in zip(tensors, [1, 0, 1, 0], strict=True)}
    found = shards(tensors, homes, 2)
    assert all(homes[tile] == node for tile, node in found.tiles())
    assert found.of(1) == ("w-00002-of-00002.safetensors", [tensors[0], tensors[2]])


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_nodes_write_nearly_equally_many_bytes_and_each_tensor_once(nodes: int) -> None:
    tensors = [tensor(f"t{n}", *[4] * (1 + n % 7)) for n in range(40)]
    found = shards(tensors, {tile: 0 for item in tensors for tile in item.weights.values()}, nodes)
    assert Counter(tile for tile, _ in found.tiles()) == Counter(tile for item in tensors for tile in item.weights.values())
    sizes = [found.nbytes_of(node) for node in range(nodes)]
    assert sum(sizes) == found.nbytes and max(sizes) - min(sizes) <= 4 * 28, "they differ by at most the largest tensor"
    index = found.index(1)
    assert (index is None) is (nodes == 1)
    if index is not None:
        assert len(index["weight_map"]) == 40


def test_fewer_tensors_than_nodes_are_in_fewer_files() -> None:
    found = shards([tensor("a", 8)], {}, 3)
    assert [found.of(node) for node in range(3)][1:] == [None, None]
    assert found.of(0) is not None and found.of(0)[0] == "w.safetensors"  # type: ignore[index]
    assert found.nbytes_of(2) == 0
