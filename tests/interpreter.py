"""An interpreter that runs a Program entry by entry, every tile a NumPy array: the engine must agree with it.

It has no tiers and no evictions, and keeps the program's order. A temporary is NaN until it is written. An operand that an
operation overwrites ("w") is made NaN again first. Reading a temporary before it was written is an error. Tiles of bf16 hold
its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.kernels.bf16 import from_bf16, to_bf16
from asynctile.layers.optimizer import AdamW
from asynctile.layers.parameters import Parameter, Parameters, initial_piece
from asynctile.layers.rows import Rows
from asynctile.layers.step import record
from asynctile.program.operation import READ, WRITE, Operation
from asynctile.program.precision import BF16
from asynctile.program.program import Fetch, Program
from asynctile.storage.tile import Tile, corner
from tests.verbs import VERBS

Array = NDArray[Any]

#: Verbs of which only several together overwrite a tile; the next verb that reads the tile shows what was left out.
PARTIAL = {"embed_positions"}


BF16_NAN = 0x7FC0


def values(array: Array) -> Array:
    """Return the numbers of a tile's array, widened from bf16 if need be."""
    return from_bf16(array) if array.dtype == BF16 else array


@dataclass
class Interpreter:
    """An interpreter of programs on NumPy arrays.

    arrays: of persistent tiles, between runs. kernels: by name, either VERBS or a device's.
    """

    arrays: dict[Tile, Array] = field(default_factory=dict)
    kernels: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: VERBS)

    def run(
        self, program: Program, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None
    ) -> dict[str, float]:
        """Run `program`; fill `outputs`, update the persistent arrays, return the numbers by label."""
        arrays = dict(self.arrays)
        for name, tile in program.inputs.items():
            arrays[tile] = np.array(inputs[name], tile.dtype)
            assert arrays[tile].shape == tile.shape, name
        numbers = np.full(len(program.numbers) + 1, np.nan)
        for entry in program.entries:
            if isinstance(entry, Operation):
                self.execute(entry, arrays, numbers)
            elif isinstance(entry, Fetch):
                assert outputs is not None, f"nowhere to put {entry.key}"
                target = outputs[entry.key][entry.index]
                target[...] = corner(arrays[entry.tile], target.shape)
        assert not np.isnan(numbers[:-1]).any(), "a number was reserved and never reported"
        return dict(zip(program.numbers, numbers[:-1].tolist(), strict=True))

    def execute(self, operation: Operation, arrays: dict[Tile, Array], numbers: Array) -> None:
        """Run one operation, and assert that operands which it may only read are unchanged."""
        operands, before = [], []
        for tile, how in zip(operation.operands, operation.access, strict=True):
            if how == WRITE:
                arrays.setdefault(tile, np.empty(tile.shape, tile.dtype)).fill(BF16_NAN if tile.dtype == BF16 else np.nan)
            assert tile in arrays, f"{operation} reads {tile.name}, which nothing has written"
            operands.append(arrays[tile])
            before.append(arrays[tile].copy() if how == READ else None)
        number = () if operation.number is None else (numbers[operation.number :][:1],)
        self.kernels[operation.kernel](*operands, *operation.params, *number)
        for tile, array, old in zip(operation.operands, operands, before, strict=True):
            if operation.kernel not in PARTIAL:
                assert not np.isnan(values(array)).any(), f"{operation} leaves NaN in {tile.name}"
            assert old is None or np.array_equal(old, array), f"{operation} changed {tile.name}"


@dataclass
class Model:
    """A model on the interpreter: what asynctile.layers.GPT2 and Trainer do, without an engine."""

    parameters: Parameters
    interpreter: Interpreter

    @classmethod
    def create(
        cls, parameters: Parameters, seed: int = 0, kernels: Mapping[str, Callable[..., Any]] = VERBS
    ) -> Model:
        model = cls(parameters, Interpreter(kernels=kernels))
        model.load({
            name: initial_piece(parameter, tuple(slice(0, n) for n in parameter.shape), seed)
            for name, parameter in parameters.items()
        })
        return model

    def load(self, state: Mapping[str, Array]) -> None:
        """Set the weights from whole tensors and the moments to zero."""
        for name, parameter in self.parameters.items():
            for key, tile in parameter.weights.items():
                piece = parameter.padded(state[name][parameter.index(*key)], *key)
                self.interpreter.arrays[tile] = np.array(piece, np.float32, order="C")
                if key in parameter.copies:
                    self.interpreter.arrays[parameter.copies[key]] = to_bf16(piece)
                for moments in (parameter.exp_avg, parameter.exp_avg_sq):
                    if parameter.trains:
                        self.interpreter.arrays[moments[key]] = np.zeros(tile.shape, np.float32)

    def state(self, family: str = "weights") -> dict[str, Array]:
        """Return whole tensors of "weights", "exp_avg" or "exp_avg_sq" by name."""
        return {name: self._gather(parameter, family) for name, parameter in self.parameters.items()}

    def logits(self, tokens: Array) -> Array:
        """Return logits of shape (B, T, V)."""
        rows = self._rows(tokens)
        flat = np.full((tokens.size, self.parameters.config.vocab_size), np.nan, np.float32)
        program = record("logits", self.parameters, rows)
        self.interpreter.run(program, batch_inputs(rows, tokens, tokens), {"logits": flat})
        return flat.reshape(*tokens.shape, -1)

    def loss(self, tokens: Array, targets: Array, positions: Array | None = None) -> float:
        rows = self._rows(tokens, packed=positions is not None)
        numbers = self._run(record("loss", self.parameters, rows), rows, tokens, targets, positions=positions)
        return _mean_loss(numbers, targets)

    def gradients(
        self,
        tokens: Array,
        targets: Array,
        micro_batches: int = 1,
        replicas: int = 1,
        *,
        kept: int = 0,
        passes: int | None = None,
        positions: Array | None = None,
    ) -> tuple[float, dict[str, Array]]:
        rows = self._rows(tokens, micro_batches, replicas, passes, packed=positions is not None)
        gradients = {item.name: np.full(item.shape, np.nan, np.float32) for item in self.parameters.trained()}
        program = record("gradients", self.parameters, rows, kept=kept)
        numbers = self._run(program, rows, tokens, targets, outputs=gradients, positions=positions)
        return _mean_loss(numbers, targets), gradients

    def step(
        self,
        tokens: Array,
        targets: Array,
        step: int = 1,
        optimizer: AdamW | None = None,
        *,
        kind: str = "step",
        micro_batches: int = 1,
        replicas: int = 1,
        kept: int = 0,
        on_host: frozenset[Tile] = frozenset(),
    ) -> tuple[float, float]:
        """Do one update; return the loss and the gradient's norm."""
        rows = self._rows(tokens, micro_batches, replicas)
        program = record(kind, self.parameters, rows, kept=kept, on_host=on_host)
        hyper = (optimizer or AdamW()).hyper(step)
        numbers = self._run(program, rows, tokens, targets, hyper=hyper)
        squares = sum(value for label, value in numbers.items() if label.startswith("norm["))
        return _mean_loss(numbers, targets), squares**0.5

    def _rows(
        self, tokens: Array, micro_batches: int = 1, replicas: int = 1, passes: int | None = None, *, packed: bool = False
    ) -> Rows:
        batch, length = tokens.shape
        rows = self.parameters.tiling.rows(batch, length, micro_batches, replicas, packed)
        return rows if passes is None else rows.in_passes(passes)

    def _run(
        self,
        program: Program,
        rows: Rows,
        tokens: Array,
        targets: Array,
        *,
        hyper: Array | None = None,
        outputs: Mapping[str, Array] | None = None,
        positions: Array | None = None,
    ) -> dict[str, float]:
        return self.interpreter.run(program, batch_inputs(rows, tokens, targets, hyper, positions), outputs)

    def _gather(self, parameter: Parameter, family: str) -> Array:
        whole = np.empty(parameter.shape, np.float32)
        for key, tile in getattr(parameter, family).items():
            whole[parameter.index(*key)] = parameter.cut(self.interpreter.arrays[tile], *key)
        return whole


def batch_inputs(
    rows: Rows, tokens: Array, targets: Array, hyper: Array | None = None, positions: Array | None = None
) -> dict[str, Array]:
    """Return every input that any kind of program may have; tokens, targets and positions have shape (B, T)."""
    inputs: dict[str, Array] = {}
    for row in rows:
        inputs[f"tokens[{row.index}]"] = tokens.reshape(-1)[rows.part(row)]
        inputs[f"targets[{row.index}]"] = targets.reshape(-1)[rows.part(row)]
        if positions is not None:
            inputs[f"positions[{row.index}]"] = positions.reshape(-1)[rows.part(row)]
    inputs["scale"] = np.array([1 / max(1, _count(targets))], np.float32)
    if hyper is not None:
        inputs["hyper"] = hyper
    return inputs


def _count(targets: Array) -> int:
    return int((targets != -100).sum())


def _mean_loss(numbers: Mapping[str, float], targets: Array) -> float:
    return sum(value for label, value in numbers.items() if label.startswith("loss[")) / _count(targets)
