"""What options of a run mean together: refused is what cannot work whatever the data and the model are.

Covers `check_fit`. Each value by itself is checked in values.py; what fits a model or a text is model.py's and corpus.py's.
"""

from __future__ import annotations

import re

from asynctile.cli.options import Options
from asynctile.layers.rows import MOST_TOKENS
from asynctile.layers.update_placement import UPDATES
from asynctile.program.precision import PRECISIONS

__all__ = ["check_fit"]

_DEVICE = re.compile("auto|cpu|emulated|cuda(:[0-9]+)?")


def check_fit(options: Options) -> Options:
    """The same options, or ValueError with a sentence."""
    _check_placement(options)
    _check_batch(options)
    if options.validation_data is not None and options.validation_share is not None:
        raise ValueError("--validation-share holds out a part of --data, and --validation-data names another text; leave one "
                         "of them out")
    if options.warmup_steps > options.steps:
        raise ValueError(f"--warmup {options.warmup_steps} is above --steps {options.steps}; choose at most --steps")
    return options


def _check_placement(options: Options) -> None:
    device, precision = options.device, options.precision
    if not _DEVICE.fullmatch(device):
        raise ValueError(f"--device {device} is not known; expected auto, cpu, emulated or cuda:N")
    if options.spill is None and options.spill_limit is not None:
        raise ValueError("--spill-limit without --spill: name the folder with --spill, or leave --spill-limit out")
    if precision not in PRECISIONS:
        raise ValueError(f"--precision {precision} is not known; expected fp32, tf32 or bf16")
    if precision != "fp32" and device in ("cpu", "emulated"):
        raise ValueError(f"--precision {precision} needs --device cuda:N; write --precision fp32 for {device}")
    if device == "cpu" and options.device_memory is not None:
        raise ValueError("--device-memory is not for --device cpu, where RAM is the device; use --host-memory")
    if device != "emulated" and options.link_rate is not None:
        raise ValueError(f"--link-rate does not go with --device {device}; it is for --device emulated")
    if options.update not in UPDATES:
        raise ValueError(f"--update {options.update} is not known; expected {', '.join(UPDATES)}")


def _check_batch(options: Options) -> None:
    if (tokens := options.batch_size * (options.seq_len or 1)) > MOST_TOKENS:
        raise ValueError(f"--batch-size {options.batch_size} makes a step of {tokens:,} tokens or more; expected at most "
                         f"{MOST_TOKENS:,}")
    if options.batch_size % options.micro_batches:
        raise ValueError(f"--batch-size {options.batch_size} cannot be cut in --micro-batches {options.micro_batches}; "
                         "choose a divisor")
