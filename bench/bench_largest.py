"""What is the largest model that eight A100 train in 900 GB of RAM, as planned? Simulated: nothing ran.

    python bench/bench_largest.py [--batches 64 8] [--write]

On the machine a100-node, models of the family of the NNTile paper (nntile_paper.py): by depth and batch, the widest whose tiles
all have a place in RAM. Widths go in steps of 1,024 as in the paper, of 256 with 16 and 32 layers. Beside them stands what the
paper's authors trained. Every replica adds gradients of its own, so wide layers need RAM beyond the states.
"""

from __future__ import annotations

import gc

from bench_policies import MACHINE, TILE
from common import Table, arguments, commit, publish, show
from nntile_paper import BATCH, FSDP, LENGTH, MODELS, NNTILE, RAM, model
from simulated import PLANNED, Setting, Step

from asynctile.measure.hardware import hardware

#: Widths come in such steps.
APART = {4: 1024, 8: 1024, 16: 256, 32: 256}


def widest(layers: int, batch: int, width: int) -> Step:
    """Return the step of the widest model that fits. width: where the search begins."""
    def step(width: int) -> Step:
        return Step(Setting(model(layers, width), there, batch, tile=TILE))

    there, unit, found = hardware(MACHINE), APART[layers], None
    while found is None or found.ram_gb > RAM / 1e9:
        found, width = step(width), width - unit
    higher = step(found.setting.config.n_embd + unit)
    while higher.ram_gb <= RAM / 1e9:
        found, higher = higher, step(higher.setting.config.n_embd + unit)
    return found


def main() -> None:
    options = arguments(__doc__, batches=(BATCH, 8))
    gc.disable()
    table = Table("the largest models that train in 900 GB of RAM, planned",
                  ("layers", "batch", "width", "billions", "RAM GB", "states GB", "TFLOP/s, simulated"))  # fmt: skip
    for layers, widths in MODELS.items():
        width = widths[-1]
        for batch in options.batches:
            step = widest(layers, batch, width // APART[layers] * APART[layers])
            config, run = step.setting.config, step.under(PLANNED)
            width = config.n_embd
            table.rows.append((layers, batch, width, config.parameter_count / 1e9, step.ram_gb, config.states_nbytes / 1e9,
                               run.tflops if run else None))  # fmt: skip
            print(" ".join(map(show, table.rows[-1])), flush=True)
    theirs = Table("measured by the paper's authors", ("who", "layers", "width", "billions", "TFLOP/s"))
    for who, found in (("NNTile", NNTILE), ("FSDP in TF32", FSDP)):
        for layers, speeds in found.items():
            width = max(width for width, speed in speeds.items() if speed)
            theirs.rows.append((who, layers, width, model(layers, width).parameter_count / 1e9, speeds[width]))
    configuration = {"commit": commit(), "batches": f"of so many sequences of {LENGTH} tokens, TF32, tiles of {TILE:,}"}
    publish("bench_largest", __doc__, configuration, [table, theirs], write=options.write)


if __name__ == "__main__":
    main()
