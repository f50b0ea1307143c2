"""The placement of a trainer's updates on its model's engine: the weight tiles that are updated on the host, of all nodes.

update_placement.py and node_updates.py find the best one. This module supplies the caps and the rates, agrees with other nodes,
and remembers choices. The devices of a node count as one with their caps together, so the copies that each has of a weight
count once, and "auto" may find room for moments where there is little.
"""

from __future__ import annotations

from collections.abc import Hashable

from asynctile.errors import BudgetError
from asynctile.layers.model_state import ModelState
from asynctile.layers.node_updates import ALL, NONE, tiles_on_host, wish_for
from asynctile.layers.nodes import Nodes
from asynctile.layers.programs import PROGRAMS
from asynctile.layers.rows import Rows
from asynctile.layers.update_placement import NOWHERE, tiles_to_update_on_host
from asynctile.program.parts import part_of
from asynctile.program.program import Program
from asynctile.storage.tile import Tile


class Placing:
    """The choices for `model`, the same on all `nodes`.

    carriers: the device of each replica, among those of all nodes. update: as in Trainer, for the weights that this node owns.
    """

    def __init__(self, model: ModelState, nodes: Nodes, carriers: tuple[int, ...], update: str) -> None:
        self.update = update
        self._model = model
        self._nodes = nodes
        self._carriers = carriers
        self._runtime = model.runtime
        #: the latest choices by kind and batch, at most as many as there are programs
        self._chosen: dict[Hashable, frozenset[Tile]] = {}

    async def on_host(self, kind: str, rows: Rows, kept: int) -> frozenset[Tile]:
        """Return the weight tiles to update on the host, on the device's loop.

        The choice is made once for a batch. All nodes make it together, so it must not depend on what each has in its caches.
        """
        has_link = self._runtime.device.has_link
        if self._nodes.count == 1 and not has_link:
            return NOWHERE
        key = self._model.parameters.tuning, kind, rows.shape, len(rows.passes), kept
        if key not in self._chosen:
            # A node without a link takes part, since other nodes may update on their hosts.
            update = self.update if has_link else "device"
            choose = self._alone if self._nodes.count == 1 else self._with_others
            self._chosen[key] = await choose(kind, rows, kept, update)
            if len(self._chosen) > PROGRAMS:
                del self._chosen[next(iter(self._chosen))]
        return self._chosen[key]

    async def recorded(self, kind: str, rows: Rows, kept: int, on_host: frozenset[Tile] = NOWHERE) -> Program:
        """Return what this node does of a program, on the device's loop."""
        return self._nodes.part(await self._whole(kind, rows, kept, on_host))

    async def _whole(self, kind: str, rows: Rows, kept: int, on_host: frozenset[Tile] = NOWHERE) -> Program:
        return await self._model.recorded(kind, rows, kept, on_host, self._carriers)

    async def _alone(self, kind: str, rows: Rows, kept: int, update: str) -> frozenset[Tile]:
        """Return the tiles of a single node."""
        if update != "auto":
            return frozenset(self._model.weights()) if update == "host" else NOWHERE
        devices = self._runtime.devices
        program = await self._model.recorded(kind, rows, kept)
        demand, cap = self._model.demand(program), self._runtime.device_cap * devices
        if demand.resident_nbytes <= cap:
            return NOWHERE
        rates = self._runtime.tiers.rates.on(devices)
        chosen = await self._runtime.compute(tiles_to_update_on_host, program, demand, cap, rates)
        return chosen if not chosen or await self._fits(kind, rows, kept, chosen) else NOWHERE

    async def _with_others(self, kind: str, rows: Rows, kept: int, update: str) -> frozenset[Tile]:
        """Return the tiles of all nodes, each of which tells what it wishes for its own."""
        wish = {"host": ALL, "device": NONE}.get(update) or await self._wish(kind, rows, kept)
        chosen = await self._agreed(f"updates of {kind}", wish)
        if not chosen:
            return NOWHERE
        if update == "auto" and not await self._fits(kind, rows, kept, chosen):
            wish = NONE
        return await self._agreed(f"updates of {kind} that fit", wish)

    async def _wish(self, kind: str, rows: Rows, kept: int) -> str:
        runtime, parameters, devices = self._runtime, self._model.parameters, self._runtime.devices
        whole, homes = await self._whole(kind, rows, kept), self._nodes.homes(parameters)

        def found() -> str:
            standing = [tile for tile in parameters.states() if not homes.get(tile, 0)]
            cap, rates = runtime.device_cap * devices, runtime.tiers.rates.on(devices)
            return wish_for(part_of(whole, 0, devices), standing, cap, rates)

        return await runtime.compute(found)

    async def _agreed(self, topic: str, wish: str) -> frozenset[Tile]:
        """Return the tiles that all nodes wish to update on their hosts."""
        said = await self._nodes.tell(topic, wish.encode())
        parameters = self._model.parameters
        return tiles_on_host(parameters, self._nodes.homes(parameters), [one.decode() for one in said])

    async def _fits(self, kind: str, rows: Rows, kept: int, chosen: frozenset[Tile]) -> bool:
        """Return whether RAM over a spill folder is large enough for an operation of the host."""
        placed = await self.recorded(kind, rows, kept, chosen)
        try:
            self._runtime.tiers.caps.check_floor(self._model.demand(placed))
        except BudgetError:
            return False
        return True
