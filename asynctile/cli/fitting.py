"""Checks of options that do not fit together, whatever the data and the model are.

Covers `check_fit`, and how many steps --epochs makes. values.py checks single values; model.py and corpus.py check what fits a
model or a text.
"""

from __future__ import annotations

import math

from asynctile.cli.options import CONSTANT, Options
from asynctile.device import resolved
from asynctile.device.names import names_of
from asynctile.errors import DeviceError
from asynctile.layers.rows import MOST_TOKENS
from asynctile.layers.update_placement import UPDATES
from asynctile.nodes.tcp_exchange import NCCL, TCP
from asynctile.program.precision import PRECISIONS

__all__ = ["check_devices", "check_fit", "steps_of"]

#: The largest step that a checkpoint can count.
MOST_STEPS = 1 << 63
#: Limit of --sample-tokens: a sample is written at every validation, and takes time in proportion to this number.
MOST_SAMPLE_TOKENS = 1_000


def check_fit(options: Options) -> Options:
    """Return the same options, or raise ValueError with a sentence."""
    _check_placement(options)
    _check_nodes(options)
    _check_batch(options)
    _check_validation(options)
    _check_schedule(options)
    _check_trace(options)
    return options


def check_devices(options: Options) -> None:
    """Raise ValueError for more devices than replicas, on all nodes together."""
    try:
        names = names_of(resolved(options.device))
    except ValueError as error:
        raise ValueError(f"--{error}") from None
    if options.nodes > 1 and (count := len(names) * options.nodes) > options.replicas:
        raise ValueError(f"--nodes {options.nodes} have {count} devices in all, but --replicas is {options.replicas}; choose "
                         f"--replicas of at least {count}, a power of two that divides --batch-size, or fewer nodes")
    if len(names) > options.replicas:
        raise ValueError(f"--device {options.device} has {len(names)} devices, but --replicas is {options.replicas}; choose "
                         f"--replicas of at least {len(names)}, a power of two that divides --batch-size, or fewer devices")


def _check_validation(options: Options) -> None:
    if options.validation_data is not None and options.validation_share is not None:
        raise ValueError("--validation-share holds out a part of --data, but --validation-data names another text; leave one "
                         "of them out")
    if options.sample_tokens > MOST_SAMPLE_TOKENS:
        raise ValueError(f"--sample-tokens {options.sample_tokens} makes every validation slow; choose at most "
                         f"{MOST_SAMPLE_TOKENS:,}")


def steps_of(epochs: float, units: int, units_a_step: int) -> int:
    """Return the steps that train on all units of the data this often; ValueError if there are too many to count."""
    steps = epochs * units / units_a_step
    if steps > MOST_STEPS:
        raise ValueError(f"--epochs {epochs:g} of this data are {steps:.3g} steps, expected at most {MOST_STEPS:.3g}; choose "
                         "fewer epochs")
    return max(1, math.ceil(steps))


def _check_schedule(options: Options) -> None:
    # With --epochs, the number of steps is only known with the tokens, and checked then.
    if options.epochs is None and options.warmup_steps > options.steps:
        raise ValueError(f"--warmup {options.warmup_steps} is above --steps {options.steps}; choose at most --steps")
    if options.decay_steps is not None and options.epochs is None and options.warmup_steps > options.decay_steps:
        raise ValueError(f"--decay-steps {options.decay_steps} is below --warmup {options.warmup_steps}; choose at least "
                         "--warmup")
    if options.min_lr is not None and options.schedule == CONSTANT:
        raise ValueError(f"--min-lr {options.min_lr} does not go with --schedule constant, which stays at --lr; leave "
                         "one of them out")
    if options.last_lr > options.lr:
        raise ValueError(f"--min-lr {options.min_lr} is above --lr {options.lr}; choose at most --lr")


def _check_trace(options: Options) -> None:
    if options.trace_steps is None:
        return
    first, last = options.trace_steps
    if options.trace is None:
        raise ValueError("--trace-steps without --trace: name the file with --trace, or leave --trace-steps out")
    if options.epochs is None and max(first, last or 0) > options.steps:
        raise ValueError(f"--trace-steps {first}:{last or ''} goes beyond --steps {options.steps}; choose steps up to that, or "
                         "A: for all steps from A on")


def _check_placement(options: Options) -> None:
    device, precision = options.device, options.precision
    kind = _kind_of(device)
    if options.spill is None and options.spill_limit is not None:
        raise ValueError("--spill-limit without --spill: name the folder with --spill, or leave --spill-limit out")
    if precision not in PRECISIONS:
        raise ValueError(f"unknown --precision {precision}; expected fp32, tf32 or bf16")
    if precision != "fp32" and kind in ("cpu", "emulated"):
        raise ValueError(f"--precision {precision} needs --device cuda:N; use --precision fp32 on {device}")
    if device == "cpu" and options.device_memory is not None:
        raise ValueError("--device-memory does not go with --device cpu, where RAM is the device; use --host-memory")
    if kind != "emulated" and options.link_rate is not None:
        raise ValueError(f"--link-rate does not go with --device {device}; leave it out, or use --device emulated")
    if options.update not in UPDATES:
        raise ValueError(f"unknown --update {options.update}; expected {', '.join(UPDATES)}")


def check_join(options: Options) -> Options:
    """Return the same options; ValueError for a run of several nodes that does not say where they meet."""
    if options.nodes > 1 and options.join is None:
        raise ValueError(f"--nodes {options.nodes} without --join: name the address at which node 0 listens, such as "
                         "127.0.0.1:29500")
    return options


def _check_nodes(options: Options) -> None:
    nodes = options.nodes
    if nodes == 1 and (options.join is not None or options.node or options.secret_file is not None):
        raise ValueError("--node, --join and --secret-file are for several nodes; say how many with --nodes, or leave them out")
    if options.network not in (TCP, NCCL):
        raise ValueError(f"unknown --network {options.network}; expected tcp or nccl")
    if options.network == NCCL and nodes == 1:
        raise ValueError("--network is for several nodes; say how many with --nodes, or leave it out")
    if options.network == NCCL and _kind_of(options.device) in ("cpu", "emulated"):
        raise ValueError(f"--network nccl carries tiles between GPUs, and --device is {options.device}; use --network tcp")
    if options.node >= nodes:
        raise ValueError(f"--node {options.node} is not one of --nodes {nodes}; nodes count from 0")


def _kind_of(device: str) -> str:
    """Return the name of the first device that --device names. ValueError for a name that no engine accepts."""
    try:
        return names_of(device)[0]
    except DeviceError:
        raise ValueError(f"unknown --device {device}; expected auto, cpu, emulated or cuda:N, or several, such as "
                         "emulated*2") from None  # fmt: skip
    except ValueError as error:
        raise ValueError(f"--{error}") from None


def _check_batch(options: Options) -> None:
    if (tokens := options.sequences * (options.seq_len or 1)) > MOST_TOKENS:
        times = "" if options.gradient_accumulation == 1 else f" --gradient-accumulation {options.gradient_accumulation}"
        raise ValueError(f"--batch-size {options.batch_size}{times} makes a step of at least {tokens:,} tokens; expected at "
                         f"most {MOST_TOKENS:,}")
    if options.batch_size % (parts := options.replicas * options.micro_batches):
        replicas = f"--replicas {options.replicas} x " if options.replicas > 1 else ""
        raise ValueError(f"--batch-size {options.batch_size} cannot be split into {replicas}--micro-batches "
                         f"{options.micro_batches}; choose a multiple of {parts}, or fewer parts")
