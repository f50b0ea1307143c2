"""The rates of verbs on this machine's cores: every kernel of a training step, at the shapes of one tile edge.

No model is made and no step runs. The kernels are called one by one, on all cores at once (asynctile/measure/calls.py).
"""

from __future__ import annotations

from collections import defaultdict

from asynctile.layers.config import Config
from asynctile.layers.machine import Machine
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.measure.calls import call_of, calls_on_all_cores_s

#: Calls take their operands in turn from so many bytes on each core: more than its own caches hold.
APART = 16 << 20


def verbs_at(edge: int, config: Config) -> dict[str, float]:
    """Return the rate of each kernel on all cores together, at tiles of `edge`, as a model of this shape calls them.

    In FLOP/s if it multiplies matrices, else in bytes of its operands a second.
    """
    machine = Machine(device="cpu")
    tiling = Tiling(config, edge, machine.grain)
    parameters = Parameters(config, tiling, machine.precision)
    program = record("step", parameters, tiling.rows(2, config.block_size), kept=0)
    operations = list(program.operations())
    seconds = calls_on_all_cores_s(operations, APART)
    spent: dict[str, float] = defaultdict(float)
    work: dict[str, float] = defaultdict(float)
    for operation in operations:
        spent[operation.kernel] += seconds[call_of(operation)]
        work[operation.kernel] += operation.flops or sum(tile.nbytes for tile in operation.tiles)
    return {kernel: machine.cores * work[kernel] / spent[kernel] for kernel in sorted(work) if spent[kernel]}
