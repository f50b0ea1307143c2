"""Gradients while a step is recorded: one temporary per weight tile, and what happens when it is complete.

A tile's gradient is complete when the last pass has settled it. Then it is updated at once (kind "step"), kept
for the second phase ("step_clipped") or fetched ("gradients"). Contributions are recorded by the layers; which updates run on
the host is chosen by update_placement.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from asynctile import ops
from asynctile.layers.parameters import Key, Parameter
from asynctile.program.operation import HOST, NO_NUMBER
from asynctile.program.program import UPDATE, Program
from asynctile.storage.tile import Tile


class Gradients:
    """Gradient tiles of one program.

    closing: the pass that is being recorded is the last one. on_host: the weight tiles that are updated there.
    """

    def __init__(self, program: Program, kind: str, hyper: Tile | None, on_host: Collection[Tile] = ()) -> None:
        self.program = program
        self.on_host = on_host
        self.closing = False
        self._hyper = hyper
        self._complete = {"step": self._update, "step_clipped": self._keep, "gradients": self._fetch}[kind]
        #: begun and not yet complete
        self._open: dict[tuple[Parameter, Key], Tile] = {}
        #: complete, waiting for the second phase, with the number of its squared norm
        self._kept: list[tuple[Parameter, Key, Tile, int]] = []

    def open(self, parameter: Parameter, i: int, j: int = 0) -> tuple[Tile, bool]:
        """The gradient tile, and whether something has been written to it: what comes next is added then."""
        key = (parameter, (i, j))
        tile = self._open.get(key)
        if tile is not None:
            return tile, True
        tile = self._open[key] = self.program.tile(f"d{parameter.label(i, j)}", parameter.weights[i, j].shape)
        return tile, False

    def settle(self, parameter: Parameter, i: int, j: int = 0) -> None:
        """This pass adds nothing more here, and nothing recorded later reads the weight before its update."""
        if self.closing:
            self._complete(parameter, (i, j), self._open.pop((parameter, (i, j))))

    def update_kept(self) -> None:
        """The second phase: update every tile whose gradient was kept.

        Last complete, first updated: those are most likely still on the device.
        """
        assert self._hyper is not None, "a program that updates has hyper"
        self.program.mark(UPDATE, rewrites=(self._hyper,))  # now the norm is known, and the factor with it
        for parameter, key, tile, number in reversed(self._kept):
            # The sum of squares is the one that is there already; it is written again under its number.
            self._adamw(parameter, key, tile, number)

    def _update(self, parameter: Parameter, key: Key, tile: Tile) -> None:
        number = self._number(parameter, key)
        if parameter.weights[key] in self.on_host:
            # Before the gradient leaves, so that the norm is the device's own wherever updates run.
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
