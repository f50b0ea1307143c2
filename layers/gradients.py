"""Gradients while a step is recorded: the partials of each weight tile, their sum, and the action once it is complete.

Each replica adds its rows to a partial of its own. partials.py defines the tree that adds the partials. A tile's gradient is
complete when the last row of the batch has settled it. Then it is used for the update at once (kind "step"), kept for the
second phase ("step_clipped") or fetched ("gradients"). The layers record contributions. update_placement.py chooses which
updates run on the host.

Layers record no gradient of a frozen tensor, unless an operation computes it along with others. It is then dropped.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from asynctile import ops
from asynctile.layers.parameters import Key, Parameter
from asynctile.layers.partials import Partials
from asynctile.layers.rows import Row, Rows
from asynctile.program.operation import HOST, NO_NUMBER
from asynctile.program.program import UPDATE, Program
from asynctile.storage.tile import Tile


class Gradients:
    """The gradient tiles of one program.

    rows: of the batch. on_host: the weight tiles that are updated on the host.
    """

    def __init__(
        self, program: Program, kind: str, rows: Rows, hyper: Tile | None, on_host: Collection[Tile] = ()
    ) -> None:
        self.program = program
        self.on_host = on_host
        self._rows = rows
        self._hyper = hyper
        self._complete = {"step": self._update, "step_clipped": self._keep, "gradients": self._fetch}[kind]
        #: partials that were begun and are not complete yet, at most one a weight tile
        self._open: dict[tuple[Parameter, Key], Tile] = {}
        #: complete partials by weight tile; none if there is one replica
        self._partials: dict[tuple[Parameter, Key], Partials[Tile]] = {}
        #: complete gradients that wait for the second phase, each with the number of its squared norm
        self._kept: list[tuple[Parameter, Key, Tile, int]] = []

    def open(self, parameter: Parameter, i: int, j: int = 0) -> tuple[Tile, bool]:
        """Return the partial under way, and whether it holds contributions already, to which the next one is added."""
        key = (parameter, (i, j))
        tile = self._open.get(key)
        if tile is not None:
            return tile, True
        name = f"d{parameter.label(i, j)}"
        if self._rows.replicas > 1 and parameter.trains:
            name += f".{len(self._partials.setdefault(key, Partials(self._add)))}"
        tile = self._open[key] = self.program.tile(name, parameter.weights[i, j].shape)
        return tile, False

    def close(self, parameter: Parameter, row: Row, i: int, j: int = 0) -> None:
        """Complete the partial if `row`, the last one that contributed to it, is the last one of its replica.

        A single replica has nothing to be added to. Its tile stays open, and both ends of the tied wte contribute to it.
        """
        if self._rows.replicas > 1 and self._rows.ends_replica(row):
            key = (parameter, (i, j))
            partial = self._open.pop(key)
            if parameter.trains:
                self._partials[key].take(partial)

    def settle(self, parameter: Parameter, row: Row, i: int, j: int = 0) -> None:
        """Do as `close`; after the last row of the batch the gradient is complete.

        Nothing recorded later reads the weight before its update.
        """
        self.close(parameter, row, i, j)
        if row.index == len(self._rows) - 1:
            key = (parameter, (i, j))
            if parameter.trains:
                self._complete(*key, self._partials.pop(key).root if self._rows.replicas > 1 else self._open.pop(key))
            else:
                self._open.pop(key, None)

    def update_kept(self) -> None:
        """Record the second phase: update every tile whose gradient was kept.

        The gradient that was completed last goes first, because it is most likely still on the device.
        """
        assert self._hyper is not None, "a program that updates has hyper"
        self.program.mark(UPDATE, rewrites=(self._hyper,))  # now the norm is known, and with it the clipping factor
        for parameter, key, tile, number in reversed(self._kept):
            # This sum of squares equals the earlier one. The update writes it again under the same number.
            self._adamw(parameter, key, tile, number)

    def _add(self, source: Tile, target: Tile) -> None:
        self.program.add(ops.add(source, target))

    def _update(self, parameter: Parameter, key: Key, tile: Tile) -> None:
        number = self._number(parameter, key)
        if parameter.weights[key] in self.on_host:
            # On the device, before the gradient leaves, so that the norm has the same bits wherever updates run.
            self.program.add(ops.sum_squares(tile, number=number, padding=parameter.padding(*key)))
        if UPDATE not in self.program.marks:
            self.program.mark(UPDATE)
        self._adamw(parameter, key, tile, number)

    def _keep(self, parameter: Parameter, key: Key, tile: Tile) -> None:
        number = self._number(parameter, key)
        self.program.add(ops.sum_squares(tile, number=number, padding=parameter.padding(*key)))
        self._kept.append((parameter, key, tile, number))

    def _fetch(self, parameter: Parameter, key: Key, tile: Tile) -> None:
        self.program.fetch(tile, parameter.name, parameter.index(*key))

    def _number(self, parameter: Parameter, key: Key) -> int:
        return self.program.number(f"norm[{parameter.label(*key)}]")

    def _adamw(self, parameter: Parameter, key: Key, tile: Tile, number: int) -> None:
        assert self._hyper is not None, "a program that updates has hyper"
        w, m, v = parameter.weights[key], parameter.exp_avg[key], parameter.exp_avg_sq[key]
        copy, on_host, decay = parameter.copies.get(key), w in self.on_host, parameter.decay
        number, padding = NO_NUMBER if on_host else number, parameter.padding(*key)
        if copy is None:
            update = ops.adamw(w, tile, m, v, self._hyper, decay=decay, number=number, padding=padding)
        else:
            update = ops.adamw_bf16(
                w, tile, m, v, self._hyper, copy, decay=decay, number=number, padding=padding)
        self.program.add(replace(update, device=HOST) if on_host else update)
