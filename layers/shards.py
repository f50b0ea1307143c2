"""Which node writes which tensors of a checkpoint, and into which files: `Shards`. Pure.

Each tensor is written whole, by one node. So a file needs no word about tiles or nodes, and any number of nodes reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from asynctile.layers.config import WEIGHT_NBYTES
from asynctile.layers.parameters import Parameter
from asynctile.layers.weight_files import file_names, index_of, tensor_name
from asynctile.storage.tile import Tile


class Shards:
    """The tensors of `families` ("weights", "exp_avg", "exp_avg_sq") of some parameters, divided among the files of all nodes.

    file: the name, if all tensors are in one file. homes: the node of each tile; tiles that all nodes have are not in it.
    nbytes: of all tensors.
    """

    def __init__(
        self, file: str, parameters: Iterable[Parameter], families: Sequence[str], homes: Mapping[Tile, int], nodes: int
    ) -> None:
        self.families = tuple(families)
        self._file = file
        chosen = list(parameters)
        self._sizes = {item.name: len(self.families) * WEIGHT_NBYTES * prod(item.shape) for item in chosen}
        self.nbytes = sum(self._sizes.values())
        writers = self._writers(chosen, homes, nodes)
        groups = {node: [item for item in chosen if writers[item.name] == node] for node in range(nodes)}
        groups = {node: group for node, group in groups.items() if group} or {0: []}
        self._files = dict(zip(groups, file_names(file, len(groups)), strict=True))
        self._groups = groups

    def _writers(self, parameters: Iterable[Parameter], homes: Mapping[Tile, int], nodes: int) -> dict[str, int]:
        """Return the writer of each tensor: large ones first, each where it adds the fewest bytes to write and receive."""
        loads, found = [0] * nodes, dict[str, int]()
        for item in sorted(parameters, key=lambda item: -self._sizes[item.name]):
            tiles = list(self._tiles(item))
            missing = [sum(tile.nbytes for tile in tiles if homes.get(tile, node) != node) for node in range(nodes)]
            writer = min(range(nodes), key=lambda node: loads[node] + missing[node])
            loads[writer] += self._sizes[item.name]
            found[item.name] = writer
        return found

    def _tiles(self, parameter: Parameter) -> Iterator[Tile]:
        for family in self.families:
            yield from getattr(parameter, family).values()

    def of(self, node: int) -> tuple[str, list[Parameter]] | None:
        """Return the file that a node writes, with the parameters in it; None if it writes none."""
        return (self._files[node], self._groups[node]) if node in self._files else None

    def nbytes_of(self, node: int) -> int:
        """Return the bytes of the tensors that a node writes."""
        return sum(self._sizes[item.name] for item in self._groups.get(node, ()))

    def tiles(self) -> Iterator[tuple[Tile, int]]:
        """Yield each tile with the node that writes it. A node writes its own tiles in this order."""
        for node, group in self._groups.items():
            for item in group:
                yield from ((tile, node) for tile in self._tiles(item))

    def index(self, parameter_count: int) -> dict[str, Any] | None:
        """Return the content of the index beside the files, as transformers writes it; None if there is one file."""
        if len(self._files) == 1:
            return None
        names = {self._files[node]: [tensor_name(item.name, family) for item in group for family in self.families]
                 for node, group in self._groups.items()}  # fmt: skip
        return index_of(names, self.nbytes, parameter_count)
