"""The rates of verbs on this machine: every kernel of a training step, at the shapes of one tile edge.

No model is made and no step runs. The kernels are called one by one, on all cores at once (asynctile/measure/calls.py) or on a
GPU (asynctile/measure/gpu_times.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from asynctile.layers.config import Config
from asynctile.layers.machine import Machine
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.measure.calls import Call, call_of, calls_on_all_cores_s
from asynctile.program.operation import Operation

#: Calls take their operands in turn from so many bytes on each core: more than its own caches hold.
APART = 16 << 20
#: Returns the seconds of each kind of call among operations.
Seconds = Callable[[Sequence[Operation]], Mapping[Call, float]]


def verbs_at(edge: int, config: Config, machine: Machine, seconds_of: Seconds) -> dict[str, float]:
    """Return the rate of each kernel at tiles of `edge`, as a model of this shape calls them; on all cores together or a GPU.

    In FLOP/s if it multiplies matrices, else in bytes of its operands a second. seconds_of: of calls on the machine.
    """
    tiling = Tiling(config, edge, machine.grain)
    parameters = Parameters(config, tiling, machine.precision)
    rows = tiling.rows(2 * tiling.row_tokens // config.block_size, config.block_size)  # two whole row tiles
    program = record("step", parameters, rows, kept=0)
    operations = list(program.operations())
    seconds = seconds_of(operations)
    spent: dict[str, float] = defaultdict(float)
    work: dict[str, float] = defaultdict(float)
    for operation in operations:
        spent[operation.kernel] += seconds[call_of(operation)]
        work[operation.kernel] += operation.flops or sum(tile.nbytes for tile in operation.tiles)
    return {kernel: machine.cores * work[kernel] / spent[kernel] for kernel in sorted(work) if spent[kernel]}


def seconds_on_cores(operations: Sequence[Operation]) -> Mapping[Call, float]:
    """Return the seconds of each kind of call on a core while all cores make the same calls."""
    return calls_on_all_cores_s(operations, APART)
