"""`asynctile plan`: what a training step needs and what bounds it, without a model and without a device.

Covers choosing the shape from the options of `train`, and printing. The planning is asynctile/layers/plan.py.
"""

from __future__ import annotations

from typing import Any

from asynctile.cli.corpus import expected_vocab_size
from asynctile.cli.model import choose_shape
from asynctile.cli.precedence import new_options, resumed_options
from asynctile.cli.rows import print_rows
from asynctile.cli.run_folder import existing_run
from asynctile.layers.machine import Machine, Work
from asynctile.layers.plan import plan_step

__all__ = ["run"]


def run(given: dict[str, Any]) -> int:
    """Print the plan; returns the exit status."""
    typed = {name: value for name, value in given.items() if name != "resume"}
    if given.get("resume"):
        folder = existing_run(typed)
        options = resumed_options(typed, folder.read_record()["options"], folder.path)
    else:
        options = new_options(typed)
    shape = choose_shape(options, expected_vocab_size(options))
    seq_len = options.seq_len or shape.block_size
    work = Work(batch_size=options.sequences, seq_len=seq_len, micro_batches=options.parts, tile=options.tile,
                recompute=options.recomputing, clip_norm=options.clip_norm, update=options.update)  # fmt: skip
    machine = Machine(device=options.device, precision=options.precision, device_memory=options.device_memory,
                      host_memory=options.host_memory, spill=options.spill is not None, spill_limit=options.spill_limit,
                      prefetch=options.prefetch, link_rate=options.link_rate)  # fmt: skip
    plan = plan_step(shape, work, machine)
    print_rows([
        ("model", shape.summary),
        ("batch", f"{options.sequences} sequences of {seq_len} tokens, micro-batches: {options.parts}"),
        *plan.lines(),
    ])  # fmt: skip
    return 0
