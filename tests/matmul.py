"""A tiled product as a program, for tests of the engine that need no model."""

from dataclasses import replace

import numpy as np

from asynctile import Engine
from asynctile.ops import gemm
from asynctile.program.needs import demand_of
from asynctile.program.operation import HOST
from asynctile.program.program import Program
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile


class Matmul:
    """C = A B in n x n tiles of edge x edge, A and B filled from a seed.

    on_host: (i, j, k) -> whether that product of tiles runs on the host.
    """

    def __init__(self, n=4, edge=32, seed=0, on_host=lambda i, j, k: False):
        self.n, self.edge, self.on_host = n, edge, on_host
        rng = np.random.default_rng(seed)
        self.a, self.b = rng.standard_normal((2, n * edge, n * edge), dtype=np.float32)
        self.tiles = {
            name: {
                (i, j): Tile(f"{name}[{i},{j}]", (edge, edge), persistent=True) for i in range(n) for j in range(n)
            }
            for name in "abc"
        }
        self.program = Program("matmul")
        for i in range(n):
            for j in range(n):
                for k in range(n):
                    self.program.add(self.operation(i, j, k))
        self.program.finish()
        self.demand = demand_of([self.program], self.standing())
        self.nbytes = edge * edge * 4

    def operation(self, i, j, k):
        product = gemm(self.tiles["a"][i, k], self.tiles["b"][k, j], self.tiles["c"][i, j], accumulate=k > 0)
        return replace(product, device=HOST) if self.on_host(i, j, k) else product

    def standing(self):
        return [tile for tiles in self.tiles.values() for tile in tiles.values()]

    async def prepare(self, engine):
        await runtime_of(engine).reserve(self.demand)
        await runtime_of(engine).store(
            (tile, self.part(matrix, *key))
            for name, matrix in (("a", self.a), ("b", self.b))
            for key, tile in self.tiles[name].items()
        )

    async def run(self, engine):
        async def job():
            async with runtime_of(engine).exclusive():
                await (await runtime_of(engine).start(self.program, self.demand, {})).finish()

        await runtime_of(engine).call(job())

    async def result(self, engine):
        whole = np.empty((self.n * self.edge,) * 2, np.float32)
        for key, tile in self.tiles["c"].items():
            self.part(whole, *key)[...] = await runtime_of(engine).read(tile)
        return whole

    def part(self, matrix, i, j):
        e = self.edge
        return matrix[i * e : (i + 1) * e, j * e : (j + 1) * e]


async def product_in_ram(work):
    """Return the bits that `work` must give wherever its tiles are, computed on cpu with all tiles in RAM."""
    async with Engine("cpu") as engine:
        await work.prepare(engine)
        await work.run(engine)
        return await work.result(engine)


def engine_for(work, folder, device, slots, ram, prefetch=2, **more):
    """Return an engine over a spill folder, with caps in tiles of `work`.

    slots: tiles that fit on the device; None makes RAM the device. ram: tiles that fit in RAM.
    """
    cap = None if slots is None else slots * work.nbytes
    return Engine(device, device_memory=cap, host_memory=ram * work.nbytes, spill=folder, prefetch=prefetch, **more)
