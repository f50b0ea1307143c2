"""The content of a checkpoint and how nodes write it together: each its files, the small ones and the last rename by node 0.

Node 0 makes the folder beside the final place and tells its name. A node that does not see it is found before anything is
written. Each node writes and syncs one file of weights and one of moments (shards.py), and says their checksums. After an error
on any node before the rename, the folder is removed and the older checkpoint stays.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

from asynctile.errors import CheckpointError
from asynctile.layers.adapter_files import ADAPTER, ADAPTER_CONFIG, write_adapter
from asynctile.layers.exchange import CONFIG, check_place, replaced, told_room
from asynctile.layers.model_state import ModelState
from asynctile.layers.nodes import Nodes
from asynctile.layers.parameters import MOMENTS
from asynctile.layers.saving import Counted, Progress
from asynctile.layers.settings import Training
from asynctile.layers.shards import Shards
from asynctile.layers.telling import told_save
from asynctile.layers.terms import terms_of
from asynctile.layers.training_state import TRAINER, Foundation, encoded, state_of
from asynctile.layers.weight_files import ReadTile, checksums_of, write_checksums, write_config, write_tensors
from asynctile.loop.files import Files
from asynctile.storage.beside import fresh_folder
from asynctile.storage.documents import store_file, store_json
from asynctile.storage.input import parse_json
from asynctile.storage.tensors import WEIGHTS, index_beside
from asynctile.storage.tile import Tile

OPTIMIZER = "optimizer.safetensors"


def mark_of(foundation: Foundation | None) -> str:
    """Return the file by which an older checkpoint of the same kind is known."""
    return CONFIG if foundation is None else ADAPTER_CONFIG


class Content:
    """The content of a checkpoint, from the moment when it is asked for. state: of trainer.json."""

    def __init__(self, model: ModelState, state: bytes, foundation: Foundation | None, nodes: Nodes) -> None:
        self.model, self._state, self.foundation = model, state, foundation
        self._parameters, self._companions = model.parameters, model.companions
        self.homes = nodes.homes(self._parameters)
        # An adapter's weights are few, and PEFT reads no index: node 0 writes them.
        is_whole = foundation is None
        valued = self._parameters.values() if is_whole else self._parameters.adapters()
        file, writers = (WEIGHTS, nodes.count) if is_whole else (ADAPTER, 1)
        self._values = Shards(file, valued, ("weights",), self.homes, writers)
        self._moments = Shards(OPTIMIZER, self._parameters.trained(), MOMENTS, self.homes, nodes.count)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return self._values.nbytes + self._moments.nbytes

    def counted(self, node: int, read: ReadTile, progress: Progress | None) -> Counted:
        """Return the tiles that a node writes, which `read` returns. Every byte is written, then read for its checksum."""
        return Counted(read, 2 * (self._values.nbytes_of(node) + self._moments.nbytes_of(node)), progress)

    def tiles(self) -> Iterator[Tile]:
        """Yield the tiles of all tensors."""
        yield from chain.from_iterable(self.readers().values())

    def readers(self) -> dict[int, list[Tile]]:
        """Return the tiles that each node writes, in its order."""
        found: dict[int, list[Tile]] = defaultdict(list)
        for tile, node in chain(self._values.tiles(), self._moments.tiles()):
            found[node].append(tile)
        return found

    async def write(self, final: Path, tiles: Counted, files: Files) -> None:
        """Write the checkpoint as the only node."""
        async with replaced(final, self.nbytes, files, partial(self.model.saved_to, final)) as folder:
            await self.write_part(folder, 0, tiles, files)
            await self.write_rest(folder, tiles, files, {})
        tiles.end()

    async def write_part(self, folder: Path, node: int, tiles: Counted, files: Files) -> list[Path]:
        """Write the tensors of a node; return its files."""
        written = []
        for shards in (self._values, self._moments):
            if (part := shards.of(node)) is None:
                continue
            file, parameters = part
            if file == ADAPTER:
                assert self.foundation is not None
                base = self.foundation.base
                await write_adapter(folder, self._parameters, base, self._companions, tiles.read, files)
            else:
                await write_tensors(folder / file, parameters, shards.families, tiles.read, files)
            written.append(folder / file)
        return written

    async def write_rest(self, folder: Path, tiles: Counted, files: Files, known: Mapping[str, str]) -> None:
        """Write all other files. known: the checksums of the files of other nodes."""
        config = self._parameters.config
        if self.foundation is None:
            await write_config(folder, config, self._companions, files)
        for file, shards in ((WEIGHTS, self._values), (OPTIMIZER, self._moments)):
            if (index := shards.index(config.parameter_count)) is not None:
                await store_json(folder / index_beside(file), index, executor=files)
        await store_file(folder / TRAINER, self._state, executor=files)
        await write_checksums(folder, files, tiles.add, known)


def foundation_of(model: ModelState) -> Foundation | None:
    """Return what the model's adapter stands on; None for a model without one. ValueError if its base is in no folder."""
    if model.parameters.lora is None:
        return None
    if model.base is None:
        raise ValueError("a checkpoint of an adapter names the folder of its base, and the base of this one was not loaded "
                         "from a folder, or was trained since; before the model gets an adapter, call save_pretrained and "
                         "load that")
    return Foundation(model.base, bool(model.parameters.stored))


async def save_together(model: ModelState, training: Training, final: Path, nodes: Nodes, progress: Progress | None) -> None:
    """Write the checkpoint as one of several nodes. An error on one ends the training on all, which name that error."""
    try:
        await nodes.compare(partial(terms_of, model, training.settings))  # there may have been no step yet
        foundation = foundation_of(model)
        state = encoded(await model.runtime.compute(state_of, model, training, foundation), final)
        writing = _Together(Content(model, state, foundation, nodes), final, nodes, f"save of step {training.step_count}")
        with told_save(model.runtime, model.name, final, training.step_count, behind=False):
            await (writing.lead if nodes.node == 0 else writing.follow)(progress)
    except BaseException as error:
        earlier = nodes.give_up(error)
        if earlier is not None and earlier is not error and isinstance(error, Exception):
            raise earlier from error  # what failed here followed from it
        raise


class _Together:
    """A save of several nodes, as one of them sees it. topic: names the save in agreements."""

    def __init__(self, content: Content, final: Path, nodes: Nodes, topic: str) -> None:
        self._content, self._final, self._nodes, self._topic = content, final, nodes, topic
        self._files = content.model.runtime.files(f"the save of {final}")

    async def lead(self, progress: Progress | None) -> None:
        """Save as node 0, which makes the folder, writes what is not of one node, and puts the folder in its place."""
        content, files = self._content, self._files
        done = partial(content.model.saved_to, self._final)
        await files.run(check_place, self._final, mark_of(content.foundation))
        async with replaced(self._final, content.nbytes, files, done) as folder:
            try:
                async with told_room(self._final, content.nbytes, files):
                    await self._tell("folder", folder.name.encode())
                    tiles, _ = await self._write_own(folder, progress)
                    said = await self._tell("files", b"{}")
                    await content.write_rest(folder, tiles, files, {k: v for one in said for k, v in parse_json(one).items()})
            except BaseException as error:
                self._nodes.give_up(error)  # before the folder goes, in which others write
                raise
        await self._tell("end")
        tiles.end()

    async def follow(self, progress: Progress | None) -> None:
        """Save as another node."""
        content, files, node = self._content, self._files, self._nodes.node
        name = (await self._tell("folder"))[0].decode()
        try:
            folder = await files.run(fresh_folder, self._final, name)
        except (OSError, ValueError) as error:
            raise ValueError(f"node {node} does not see the folder that node 0 fills for {self._final}: {error}; share the "
                             "folder between the machines, and give each node its path there") from error
        try:
            async with told_room(self._final, content.nbytes, files):
                tiles, written = await self._write_own(folder, progress)
                sums = await checksums_of(written, files, tiles.add)
        except CheckpointError:
            if not await files.run(folder.is_dir):  # node 0 removes it when it has failed; then its words are on their way
                await self._tell(f"removed folder {folder.name[:60]}")
            raise
        await self._tell("files", json.dumps(sums).encode())
        await self._tell("end")
        content.model.saved_to(self._final)
        tiles.end()

    async def _write_own(self, folder: Path, progress: Progress | None) -> tuple[Counted, list[Path]]:
        """Write the files of this node, once all nodes see the folder, and send the others the tiles that they write.

        Return the tiles, for further progress, and the files.
        """
        await self._tell("sight")
        content, nodes = self._content, self._nodes
        async with nodes.gather(content.homes, content.readers(), content.model.runtime.read) as read:
            tiles = content.counted(nodes.node, read, progress)
            written = await content.write_part(folder, nodes.node, tiles, self._files)
        return tiles, written

    async def _tell(self, what: str, body: bytes = b"") -> list[bytes]:
        return await self._nodes.tell(f"{what} of the {self._topic}", body)
